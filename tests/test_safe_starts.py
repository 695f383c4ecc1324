"""No Python that we start looks for modules in the folder that somebody happens to stand in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SAFE = frozenset({"-P", "-I"})
# These lists say it in another way, which a test of theirs holds.
ELSEWHERE = {
    "sdk/allpass/training/elastic/script.py": "a user's own script once more, as it was started itself",
    "sdk/allpass/symbolic/ask.py": "a Python older than -P, and with packages that -I would hide",
    "workers/agent/command.py": "what a job is told to run, in the folder of its own code, where it is to be found",
    "workers/agent/config.py": "the agent starts itself once more, with the flags that it has",
    "workers/agent/warm.py": "it goes on as the script whose path it was given",
}


def starts_of_python(tree: ast.AST) -> Iterator[ast.List]:
    """Lists that begin with an interpreter and go on with an option for a module or for code, or with what cannot be
    known."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.List) or len(node.elts) < 2 or not _is_python(node.elts[0]):
            continue
        options = [element.value for element in node.elts[1:] if isinstance(element, ast.Constant)]
        if {"-m", "-c"} & set(options) or isinstance(node.elts[1], ast.Starred):
            yield node


def _is_python(element: ast.expr) -> bool:
    if isinstance(element, ast.Starred):
        return False
    words = ast.unparse(element)
    return words == "sys.executable" or "python" in words.lower()


def _is_safe(start: ast.List) -> bool:
    for element in start.elts[1:]:
        if not isinstance(element, ast.Constant) or element.value in {"-m", "-c"}:
            return False
        if element.value in SAFE:
            return True
    return False


def test_every_start_of_a_python_is_safe(repository_root: Path) -> None:
    """`python -m` and `python -c` put the current folder first where neither -P nor -I is given before."""
    starts, unsafe = 0, []
    for folder in ("app", "providers", "workers", "sdk"):
        for path in sorted((repository_root / folder).rglob("*.py")):
            name = str(path.relative_to(repository_root))
            for start in starts_of_python(ast.parse(path.read_text())):
                starts += 1
                if not _is_safe(start) and name not in ELSEWHERE:
                    unsafe.append(f"{name}:{start.lineno}: {ast.unparse(start)}")
    assert unsafe == []
    assert starts >= 10, "the starts are not found any more"


def test_the_search_finds_what_it_looks_for() -> None:
    """A start as it was written before is one, in each of its spellings."""
    for words in (
        '[sys.executable, "-m", "app.main"]',
        '[self._python, "-m", "uv", "pip"]',
        '[str(python), "-c", program]',
        '[python, *flags, "agent.pyz"]',
    ):
        (start,) = starts_of_python(ast.parse(words))
        assert not _is_safe(start)
    (start,) = starts_of_python(ast.parse('[sys.executable, "-S", "-P", "-c", _KEEPER, "file"]'))
    assert _is_safe(start)
    assert list(starts_of_python(ast.parse('[sys.executable, str(EXAMPLES / "train.py")]'))) == []
