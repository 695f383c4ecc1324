"""One word per thing: a class name means one thing in the whole house, and a row is written with one of few verbs."""

from __future__ import annotations

import ast
import re
import runpy
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import app

_ROOT = Path(app.__file__).parent.parent
_GLOSSARY = "glossary.md"

# Verbs that say the same as add, set or delete, and make a reader ask what the difference is.
_OTHER_VERBS = ("keep", "note", "record", "put", "write", "store", "save", "forget", "drop", "remove", "erase")


def _classes() -> Iterator[tuple[str, str]]:
    """Name and file of every class of `app`, `workers` and `providers` that others may name."""
    for folder in ("app", "workers", "providers"):
        for path in sorted((_ROOT / folder).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    yield node.name, path.relative_to(_ROOT).as_posix()


def _twins() -> dict[str, set[str]]:
    """Names that stand on several sides of a border, by the glossary: each with its files."""
    (page,) = (_ROOT / "docs").rglob(_GLOSSARY)
    section = page.read_text().split("## One thing on several sides", 1)[1]
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|", section, re.MULTILINE)
    return {name: set(re.findall(r"`([\w/]+\.py)`", files)) for name, files in rows}


def test_no_two_classes_have_one_name() -> None:
    """But for those of the glossary, which are one thing on several sides of a border."""
    files: dict[str, set[str]] = defaultdict(set)
    for name, path in _classes():
        files[name].add(path)
    assert len(files) > 500  # the search itself finds something
    assert {name: found for name, found in files.items() if len(found) > 1} == _twins()


def test_no_modules_import_each_other() -> None:
    """Neither directly nor through others, as they are loaded: whoever reads one has not to read its readers."""
    house = runpy.run_path(str(_ROOT / "scripts" / "house.py"))
    trees = house["trees_of"](_ROOT)
    assert len(trees) > 900
    assert house["circles"](trees) == []
    pair = {Path("app/a.py"): ast.parse("import app.b"), Path("app/b.py"): ast.parse("from app.a import x")}
    assert house["circles"](pair) == ["app.a app.b"]


def test_rows_are_added_set_and_deleted() -> None:
    """Whoever looks for the statement that writes a value looks for three verbs, not for ten."""
    found = [
        f"{path.relative_to(_ROOT)}: {name}"
        for path in sorted((_ROOT / "app" / "db").rglob("*.py"))
        for name in re.findall(r"^(?:async )?def (\w+)", path.read_text(), re.MULTILINE)
        if name.startswith(tuple(f"{verb}_" for verb in _OTHER_VERBS))
    ]
    assert found == []
