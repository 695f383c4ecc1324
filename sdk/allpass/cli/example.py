"""allpass example: the scripts that the guides speak of, written to where they are followed."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path
from typing import Annotated

import typer

from allpass.cli import screen
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.screen import Column

_PACKAGE = Path(__file__).resolve().parents[1]
_DATA = {
    "template.json": "The metadata of a job: GPUs, limits, labels.",
    "tickets.csv": "Rows of text with labels, to try allpass finetune with.",
}


def example(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Default: list them.")] = None,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write them.")] = Path(),
    as_json: Annotated[
        bool, typer.Option("--json", help='An array of {"name", "about"}, or {"name", "path"}.')
    ] = False,
) -> None:
    """Example: allpass example three_lines.py

    Write an example of the guides into this folder. Without a name, list them. A file that is there and says something
    else is left as it is.
    """
    if not names:
        _list(as_json=as_json)
        return
    sources = [_source(name) for name in names]
    targets = [to / one.name for one in sources]
    for source, target in zip(sources, targets, strict=True):
        if target.exists() and (not target.is_file() or target.read_bytes() != source.read_bytes()):
            raise CommandFailed(
                f"{target} is there, and is not the example", hint=f"allpass example {source.name} --to FOLDER"
            )
    to.mkdir(parents=True, exist_ok=True)
    for source, target in zip(sources, targets, strict=True):
        target.write_bytes(source.read_bytes())
        if not as_json:
            screen.say(f"{target}: {_about(source)}")
    if as_json:
        screen.print_json([{"name": one.name, "path": str(one)} for one in targets])


def _list(*, as_json: bool) -> None:
    found = [(path.name, _about(path)) for path in sorted(_folder().iterdir()) if _is_example(path)]
    if as_json:
        screen.print_json([{"name": name, "about": about} for name, about in found])
        return
    screen.print_table([Column("NAME"), Column("ABOUT", flexible=True, fold=True)], found, empty="")
    screen.say("one of them into this folder: allpass example NAME")


def _folder() -> Path:
    """Beside the command where that was installed from a wheel; in a checkout, where they are kept."""
    packed = _PACKAGE / "examples"
    return packed if packed.is_dir() else _PACKAGE.parents[1] / "examples"


def _is_example(path: Path) -> bool:
    return path.suffix == ".py" or path.name in _DATA


def _source(name: str) -> Path:
    known = {path.name: path for path in _folder().iterdir() if _is_example(path)}
    found = known.get(name) or known.get(f"{name}.py")
    if found is None:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"allpass example {near[0]}" if near else "allpass example lists them"
        raise CommandFailed(f"there is no example {name!r}", hint=hint, code=WRONG_USAGE)
    return found


def _about(path: Path) -> str:
    """The first sentence that a script says of itself."""
    if path.name in _DATA:
        return _DATA[path.name]
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(said.split("\n\n")[0].split())
