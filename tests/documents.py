"""Code blocks of Markdown files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(
    r"(?P<before>[^\n]*)\n(?P<gap>\n?)```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """`before` is the last line before the block."""

    language: str
    text: str
    before: str

    @property
    def is_run(self) -> bool:
        """By the test of all guides."""
        return not self.before.startswith(("<!-- not run: ", "<!-- run by "))

    @property
    def run_by(self) -> str | None:
        """The file that runs it instead."""
        found = re.match(r"<!-- run by (\S+) -->$", self.before)
        return None if found is None else found[1]


def blocks_of(path: Path, language: str) -> list[Block]:
    return [one for one in _all(path) if one.language == language]


def commands_of(path: Path) -> list[Block]:
    """What a reader types, in the order of the page: shell and Python, but for what says that it is not run."""
    return [one for one in _all(path) if one.language in ("sh", "python") and one.is_run]


def _all(path: Path) -> list[Block]:
    return [Block(one["language"], one["text"], one["before"]) for one in _BLOCK.finditer(path.read_text())]
