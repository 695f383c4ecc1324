"""What commands write: tables as wide as the terminal, colours that mean something, JSON that stays."""

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

WIDEST = 100  # of prose that is written to be kept, and of terminals that do not say
_MOST_PIPED = 40  # of a flexible column, where a program reads: one line for each row, and all columns
INDENT = "    "
_GAPS = ("   ", "  ")
_LEAST = 6
_MOST_BELOW = 2
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
    """A heading. `right` aligns numbers. Where a table is too wide, `flexible` columns are shortened, down to `least`;
    then those with a `rank` go, the highest first: below the row where they `fold`, else away. Ids are in columns that
    do neither, so that they can always be copied."""

    heading: str
    flexible: bool = False
    right: bool = False
    least: int = 12
    rank: int = 0
    fold: bool = False


@dataclass(frozen=True)
class Layout:
    """Which columns a table shows, how wide, with what between them, and which are told below each row."""

    shown: tuple[int, ...]
    widths: tuple[int, ...]
    below: tuple[int, ...]
    gap: str


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
    layout = lay_out(columns, cells, width()) if is_interactive() else _for_programs(columns, cells)
    colours = colours_wanted()
    typer.echo(_line([Cell(one.heading) for one in columns], columns, layout, colours=False))
    for row in cells:
        typer.echo(_line(row, columns, layout, colours=colours))
        for index in layout.below:
            if row[index].text != "-":
                for line in wrapped(row[index].text, first=INDENT, rest=INDENT, most=_MOST_BELOW):
                    typer.echo(typer.style(line, dim=True) if colours else line)


def lay_out(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], widest: int) -> Layout:
    """The table that shows most within `widest` columns."""
    natural = _natural(columns, rows)
    leaving = sorted((one for one in range(len(columns)) if columns[one].rank), key=lambda one: -columns[one].rank)
    for gone, gap in [(gone, gap) for gone in range(len(leaving) + 1) for gap in _GAPS]:
        shown = tuple(one for one in range(len(columns)) if one not in leaving[:gone])
        least = [_least(columns[one], natural[one]) for one in shown]
        room = widest - len(gap) * (len(shown) - 1)
        if sum(least) <= room:
            break
    widths = _shrunk([columns[one] for one in shown], [natural[one] for one in shown], room)
    return Layout(shown, widths, tuple(sorted(one for one in leaving[:gone] if columns[one].fold)), gap)


def _for_programs(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> Layout:
    natural = _natural(columns, rows)
    widths = [min(one, _MOST_PIPED) if column.flexible else one for column, one in zip(columns, natural, strict=True)]
    return Layout(tuple(range(len(columns))), tuple(widths), (), _GAPS[0])


def _natural(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> list[int]:
    return [
        max([width_of(column.heading), *(width_of(row[index].text) for row in rows)])
        for index, column in enumerate(columns)
    ]


def _least(column: Column, natural: int) -> int:
    return min(natural, column.least) if column.flexible else natural


def _shrunk(columns: Sequence[Column], natural: Sequence[int], room: int) -> tuple[int, ...]:
    """Flexible columns give way, the widest first: to their least, and then as far as it takes."""
    widths = list(natural)
    for floor in ([column.least for column in columns], [_LEAST] * len(columns)):
        while sum(widths) > room:
            able = [one for one, column in enumerate(columns) if column.flexible and widths[one] > floor[one]]
            if not able:
                break
            widths[max(able, key=lambda one: widths[one])] -= 1
    return tuple(widths)


def width() -> int:
    """Columns to write in: those of the terminal, or COLUMNS."""
    import shutil

    return max(40, shutil.get_terminal_size((WIDEST, 24)).columns)


def wrapped(text: str, *, first: str = "", rest: str = "", most: int | None = None) -> list[str]:
    """What stands beside others like it, in lines (no more than `most`) that fit a terminal, each after its indent; as
    one line where no person reads."""
    return _lines(text, width(), first, rest, most) if is_interactive() else [first + text]


def prose(text: str, *, first: str = "", rest: str = INDENT) -> list[str]:
    """What is read as a whole, in lines that fit a terminal, or a page where it is kept."""
    return _lines(text, width() if is_interactive() else WIDEST, first, rest, None)


def headline(name: str, status: str, why: str | None) -> list[str]:
    """What something is called, its state in colour, and the reason for it."""
    before = f"{name}   "
    lines = prose(before + status + (f": {printable(why)}" if why else ""))
    end = len(before + status)
    painted = lines[0][: len(before)] + paint(lines[0][len(before) : end], STATUS_COLOURS.get(status)) + lines[0][end:]
    return [painted, *lines[1:]]


def _lines(text: str, room: int, first: str, rest: str, most: int | None) -> list[str]:
    import textwrap

    lines = textwrap.wrap(
        text,
        room,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=is_interactive(),  # what is kept may be copied: an address stays whole
        max_lines=most,
        placeholder=" …",
    )
    return lines or [first.rstrip()]


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
    """Name and value pairs, one a line, aligned; a long value goes on below itself."""
    widest = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        for line in prose(printable(value), first=f"  {name.ljust(widest)}   ", rest=" " * (widest + 5)):
            typer.echo(line)


def paint(text: str, colour: str | None) -> str:
    """The text in this colour, if stdout wants colours."""
    return typer.style(text, fg=colour) if colour and colours_wanted() else text


def _cell(value: Cell | str) -> Cell:
    cell = value if isinstance(value, Cell) else Cell(value)
    return Cell(printable(cell.text) or "-", cell.colour)


def _line(row: Sequence[Cell], columns: Sequence[Column], layout: Layout, *, colours: bool) -> str:
    parts = []
    for index, room in zip(layout.shown, layout.widths, strict=True):
        cell, column = row[index], columns[index]
        text = shorten(cell.text, room)
        fill = " " * (room - width_of(text))
        shown = typer.style(text, fg=cell.colour) if colours and cell.colour else text
        last = index == layout.shown[-1] and not column.right
        parts.append(fill + shown if column.right else shown if last else shown + fill)
    return layout.gap.join(parts).rstrip()


def shorten(text: str, width: int) -> str:
    if width_of(text) <= width:
        return text
    kept = text
    while kept and width_of(kept) > width - 1:
        kept = kept[:-1]
    return kept + "…"


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value
