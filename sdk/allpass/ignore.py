"""Which paths of a code folder are left out: the rules of `.gitignore`, for `.allpassignore`.

Supported: comments, `!` to take back, a trailing `/` for folders only, a `/` elsewhere to anchor at the root, `*`, `?`,
`[a-z]`, `**`, and `\\` to escape. The last matching line wins. A left-out folder is not entered, so nothing inside it
can be taken back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

IGNORE_FILE = ".allpassignore"
# Never part of the code; `.env` because bundles travel to rented machines. `!.env` takes it back.
ALWAYS = (
    ".git", ".hg", ".svn", ".venv", ".allpass", ".env", "__pycache__", "*.pyc", ".mypy_cache", ".pytest_cache",
    ".ruff_cache", ".ipynb_checkpoints", ".DS_Store",
)  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """One line: the paths it matches (relative, `/` separated), and whether it leaves them out or takes them back."""

    pattern: re.Pattern[str]
    folders_only: bool
    leaves_out: bool


class IgnoreRules:
    """`ALWAYS`, then the given lines; the last match wins."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        self._rules = [rule for line in (*ALWAYS, *lines) if (rule := parse(line)) is not None]

    def leaves_out(self, path: str, *, is_folder: bool) -> bool:
        """Whether this path is left out, given that the folder it is in is not."""
        for rule in reversed(self._rules):
            if (is_folder or not rule.folders_only) and rule.pattern.fullmatch(path):
                return rule.leaves_out
        return False


def parse(line: str) -> Rule | None:
    """One line of an ignore file as a rule; None for blanks, comments and patterns that match nothing."""
    text = _strip_trailing_spaces(line.rstrip("\r\n"))
    if not text or text.startswith("#"):
        return None
    leaves_out = not text.startswith("!")
    text = text if leaves_out else text[1:]
    folders_only = text.endswith("/")
    text = text[:-1] if folders_only else text
    anchored = "/" in text
    text = text[1:] if text.startswith("/") else text
    if not text:
        return None
    prefix = "" if anchored else "(?:.*/)?"
    try:
        return Rule(re.compile(prefix + _regex(text), re.DOTALL), folders_only, leaves_out)
    except re.error:
        return None  # e.g. "a[b": matches nothing, as in git


def _strip_trailing_spaces(text: str) -> str:
    stripped = text.rstrip(" ")
    return stripped + " " if stripped.endswith("\\") and stripped != text else stripped


def _regex(text: str) -> str:
    out, at = [], 0
    while at < len(text):
        piece, at = _piece(text, at)
        out.append(piece)
    return "".join(out)


def _piece(text: str, at: int) -> tuple[str, int]:
    """The regular expression for what starts at `at`, and where to go on."""
    char = text[at]
    if char == "*":
        return _stars(text, at)
    if char == "?":
        return "[^/]", at + 1
    if char == "\\" and at + 1 < len(text):
        return re.escape(text[at + 1]), at + 2
    if char == "[":
        return _character_class(text, at)
    return re.escape(char), at + 1


def _stars(text: str, at: int) -> tuple[str, int]:
    """`**` spans folders when it is a whole segment; otherwise any number of stars stays inside one."""
    if at == 0 or text[at - 1] == "/":
        if text.startswith("**/", at):
            return "(?:[^/]+/)*", at + 3
        if text[at:] == "**":
            return ".+", at + 2
    end = at
    while end < len(text) and text[end] == "*":
        end += 1
    return "[^/]*", end


def _character_class(text: str, at: int) -> tuple[str, int]:
    start = at + 2 if text[at + 1 : at + 2] in ("!", "^") else at + 1
    end = text.find("]", start + 1)
    if end < 0:
        raise re.error("unclosed [")
    body = text[start:end].replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace("^", "\\^")
    negation = "^" if start == at + 2 else ""
    return f"(?!/)[{negation}{body}]", end + 1
