"""Tables of text (csv, or csv.gz) that people bring: every fault is told with its file, line, column and value."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from app.errors import InvalidInput

GZIP_MAGIC = b"\x1f\x8b"
LONGEST_CELL = 1 << 24


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line of a table, whose cells are read by column name."""

    file: str
    line: int
    columns: Mapping[str, int]
    cells: list[str]

    def text(self, column: str) -> str:
        """The cell without surrounding blanks; empty if the table has no such column."""
        place = self.columns.get(column)
        return "" if place is None else self.cells[place].strip()

    def number(self, column: str, *, least: float = 0.0) -> float:
        """A finite number of at least `least`."""
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or "_" in text:
            self.fail(column, "is not a number", f"give a number of at least {least:g}")
        if value < least:
            self.fail(column, f"is below {least:g}", f"give a number of at least {least:g}")
        return value

    def whole(self, column: str, *, least: int = 0) -> int:
        """A whole number of at least `least`; `8.0` is one."""
        value = self.number(column, least=least)
        if value != int(value):
            self.fail(column, "is not a whole number", f"give a whole number of at least {least}")
        return int(value)

    def fail(self, column: str, why: str, fix: str) -> NoReturn:
        raise InvalidInput(
            f"{self.file} line {self.line}, column {column}: {self.text(column)!r} {why}; {fix}", param=column
        )


def read_text(path: Path) -> str:
    """The whole text of a file, unpacked if it is gzip. InvalidInput if it cannot be had."""
    data = read_bytes(path)
    zero = data.find(b"\0")
    if zero >= 0:
        line = data.count(b"\n", 0, zero) + 1
        raise InvalidInput(f"{path} line {line}: holds a zero byte; give a text file, not a binary one", param="path")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        found = data[error.start : error.start + 1].hex()
        raise InvalidInput(
            f"{path} line {line}: the byte 0x{found} is not UTF-8; save the file as UTF-8 text", param="path"
        ) from None


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if it is gzip, whatever its name."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InvalidInput(f"{path}: there is no such file; check the path", param="path") from None
    except OSError as error:
        why = "is a folder" if path.is_dir() else f"cannot be read ({error.strerror})"
        raise InvalidInput(f"{path}: {why}; name a file that can be read", param="path") from None
    if data.startswith(GZIP_MAGIC):
        try:
            return gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise InvalidInput(f"{path}: broken gzip data ({error}); copy the file again", param="path") from None
    if path.suffix == ".gz" and data:
        raise InvalidInput(f"{path}: is not gzip data; take .gz off its name, or compress it", param="path")
    return data


def header_of(path: Path, text: str) -> list[str]:
    """The column names of a csv text."""
    names = next(csv.reader(io.StringIO(text, newline="")), None)
    if not text.strip() or names is None:
        raise InvalidInput(f"{path}: is empty; its first line must name the columns", param="path")
    return [name.strip() for name in names]


def rows_of(path: Path, text: str, required: Iterable[str]) -> Iterator[TableRow]:
    """The lines of a csv text below its header, blank ones left out. Columns may come in any order."""
    names = header_of(path, text)
    missing = [one for one in required if one not in names]
    if missing:
        raise InvalidInput(
            f"{path} line 1: there is no column {', '.join(missing)}; it has {', '.join(names)}", param=missing[0]
        )
    twice = sorted({one for one in names if names.count(one) > 1 and one})
    if twice:
        raise InvalidInput(f"{path} line 1: the column {twice[0]} is there twice; keep one", param=twice[0])
    columns = {name: place for place, name in enumerate(names)}
    csv.field_size_limit(LONGEST_CELL)
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        next(lines)
        for cells in lines:
            if not cells or (len(cells) == 1 and not cells[0].strip()):
                continue
            if len(cells) != len(names):
                raise InvalidInput(
                    f"{path} line {lines.line_num}: has {len(cells)} cells where the header names {len(names)}; "
                    "give each column one cell, which may be empty",
                    param="path",
                )
            yield TableRow(str(path), lines.line_num, columns, cells)
    except csv.Error as error:
        raise InvalidInput(
            f"{path} line {lines.line_num}: is not csv ({error}); quote cells that hold commas or quotes", param="path"
        ) from None
