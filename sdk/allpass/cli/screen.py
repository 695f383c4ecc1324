"""What commands write: tables of at most 100 columns, colours that mean something, JSON that stays."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel

WIDEST = 100
GAP = "   "
STATUS_COLOURS = {
    "running": "green",
    "succeeded": "green",
    "ready": "green",
    "queued": "yellow",
    "starting": "yellow",
    "checkpointing": "yellow",
    "waiting": "yellow",
    "paused": "yellow",
    "requested": "yellow",
    "booting": "yellow",
    "draining": "yellow",
    "unknown": "yellow",
    "failed": "red",
    "unreachable": "red",
}


@dataclass(frozen=True)
class Cell:
    """Text with an optional colour; the text is made printable."""

    text: str
    colour: str | None = None


@dataclass(frozen=True)
class Column:
    """A heading. `flexible` columns give way when the table is too wide; `right` aligns numbers."""

    heading: str
    flexible: bool = False
    right: bool = False


def is_interactive(stream: IO[str] | None = None) -> bool:
    """Whether a person reads this stream (default: stdout), rather than a program."""
    return bool((stream or sys.stdout).isatty())


def colours_wanted(stream: IO[str] | None = None) -> bool:
    """Colours go to people only, and not to those who said NO_COLOR."""
    return is_interactive(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(text: str) -> None:
    """A line on stderr for the person at the terminal; silence when nobody is there."""
    if is_interactive(sys.stderr):
        typer.echo(text, err=True)


def warn(text: str, *, hint: str) -> None:
    """What may go wrong, on stderr: also where no person reads it now, since a log of it will be read later."""
    typer.secho("warning: ", err=True, nl=False, fg="yellow" if colours_wanted(sys.stderr) else None)
    typer.echo(f"{printable(text)}\n  try: {hint}", err=True)


def status_cell(status: str) -> Cell:
    return Cell(status, STATUS_COLOURS.get(status))


def print_json(value: BaseModel | Sequence[BaseModel] | dict[str, Any] | Sequence[dict[str, Any]]) -> None:
    """One JSON document."""
    typer.echo(json.dumps(_plain(value), indent=2, ensure_ascii=False))


def print_json_line(value: BaseModel | dict[str, Any]) -> None:
    """One JSON object on one line, at once: for output that goes on."""
    typer.echo(json.dumps(_plain(value), ensure_ascii=False))
    sys.stdout.flush()


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]], *, empty: str) -> None:
    """A table; `empty` is said (to people) when there are no rows."""
    if not rows:
        say(empty)
        return
    cells = [[_cell(one) for one in row] for row in rows]
    widest = min(WIDEST, _terminal_width()) if is_interactive() else None
    widths = column_widths(columns, cells, widest)
    colours = colours_wanted()
    typer.echo(_line([Cell(one.heading) for one in columns], columns, widths, colours=False))
    for row in cells:
        typer.echo(_line(row, columns, widths, colours=colours))


def column_widths(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], widest: int | None) -> list[int]:
    """How wide each column is. Flexible ones shrink, the widest first and never below 6, until the table fits."""
    widths = [
        max([width_of(column.heading), *(width_of(row[index].text) for row in rows)])
        for index, column in enumerate(columns)
    ]
    if widest is None:
        return widths
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - widest
    while excess > 0:
        shrinkable = [index for index, column in enumerate(columns) if column.flexible and widths[index] > 6]
        if not shrinkable:
            break
        widths[max(shrinkable, key=lambda index: widths[index])] -= 1
        excess -= 1
    return widths


def width_of(text: str) -> int:
    """Columns that the text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def printable(text: str) -> str:
    """On one line and without control characters: names come from other people."""
    return "".join(char if char.isprintable() else " " for char in text).strip()


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Name and value pairs, one a line, aligned."""
    widest = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        typer.echo(f"  {name.ljust(widest)}   {printable(value)}")


def paint(text: str, colour: str | None) -> str:
    """The text in this colour, if stdout wants colours."""
    return typer.style(text, fg=colour) if colour and colours_wanted() else text


def _cell(value: Cell | str) -> Cell:
    cell = value if isinstance(value, Cell) else Cell(value)
    return Cell(printable(cell.text) or "-", cell.colour)


def _line(row: Sequence[Cell], columns: Sequence[Column], widths: Sequence[int], *, colours: bool) -> str:
    parts = []
    for index, (cell, column, width) in enumerate(zip(row, columns, widths, strict=True)):
        text = _shorten(cell.text, width)
        fill = " " * (width - width_of(text))
        shown = typer.style(text, fg=cell.colour) if colours and cell.colour else text
        last = index == len(columns) - 1 and not column.right
        parts.append(fill + shown if column.right else shown if last else shown + fill)
    return GAP.join(parts).rstrip()


def _shorten(text: str, width: int) -> str:
    if width_of(text) <= width:
        return text
    kept = text
    while kept and width_of(kept) > width - 1:
        kept = kept[:-1]
    return kept + "…"


def _terminal_width() -> int:
    import shutil

    return shutil.get_terminal_size((WIDEST, 24)).columns


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value
