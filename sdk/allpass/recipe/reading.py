"""Rows of a data file, as they are there: JSON lines, CSV or Parquet; or of a data set of the hub."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allpass.errors import InvalidData, Problem
from allpass.recipe.hub_rows import HubName, fetched, hub_name

LONGEST_CELL = 100_000_000
_READERS = {".jsonl": "json", ".ndjson": "json", ".json": "list", ".csv": "csv", ".parquet": "parquet"}


@dataclass(frozen=True)
class Row:
    """`place` tells where it is: "row 7", and the line of the file where that differs."""

    place: str
    values: Mapping[str, Any]


def name_of(source: str | os.PathLike[str] | Sequence[Mapping[str, Any]]) -> str:
    """What errors call it."""
    if not isinstance(source, (str, os.PathLike)):
        return "dataset"
    on_hub = _on_hub(Path(source))
    return Path(source).name if on_hub is None else on_hub.short


def read(source: str | os.PathLike[str] | Sequence[Mapping[str, Any]]) -> list[Row]:
    """All rows of a file, of a data set of the hub, or of a list of dicts.

    Raises InvalidData naming the row that cannot be read."""
    if not isinstance(source, (str, os.PathLike)):
        return [Row(f"row {number}", values) for number, values in enumerate(source, 1)]
    path = Path(source)
    on_hub = _on_hub(path)
    if on_hub is not None:
        _need_pyarrow(on_hub.name)
        with fetched(on_hub) as files:
            found = [row.values for file in files for row in _parquet(file)]
        return [Row(f"row {number}", values) for number, values in enumerate(found, 1)]
    kind = _READERS.get(path.suffix.lower())
    if kind is None:
        raise _refused(path, "", f"{path.suffix or 'no suffix'!r} is none of {', '.join(_READERS)}", "train.jsonl")
    if not path.is_file():
        raise _refused(path, "", f"there is no such file in {path.resolve().parent}", "dataset=FILE")
    try:
        return list({"json": _json_lines, "list": _json, "csv": _csv, "parquet": _parquet}[kind](path))
    except UnicodeDecodeError as error:
        raise _refused(
            path, "", f"is not UTF-8 text ({error.reason} at byte {error.start})", "save it as UTF-8"
        ) from None
    except OSError as error:
        raise _refused(path, "", f"cannot be read: {error.strerror or error}", None) from None


def _on_hub(path: Path) -> HubName | None:
    """A file of that name comes first; what is written like one is none of the hub's."""
    return None if path.suffix.lower() in _READERS or path.exists() else hub_name(path)


def _json(path: Path) -> Iterator[Row]:
    """One list of objects, as Alpaca and ShareGPT came; else lines."""
    with path.open(encoding="utf-8-sig") as file:
        begins_list = next((line.lstrip()[:1] for line in file if line.strip()), "") == "["
    if not begins_list:
        yield from _json_lines(path)
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise
        raise _refused(path, "", f"is not JSON: {error}", '[{"prompt": "...", "completion": "..."}]') from None
    for number, values in enumerate(found, 1):
        place = f"row {number}"
        if not isinstance(values, dict):
            raise _refused(path, place, "is not an object of fields", '[{"prompt": "...", "completion": "..."}]')
        yield Row(place, values)


def _json_lines(path: Path) -> Iterator[Row]:
    row = 0
    with path.open(encoding="utf-8-sig") as file:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            row += 1
            place = f"row {row}" if row == line else f"row {row} (line {line})"
            try:
                values = json.loads(text)
            except (ValueError, RecursionError) as error:
                what = "begins a list: one object per line is needed" if text.lstrip().startswith("[") else str(error)
                raise _refused(path, place, f"is not JSON: {what}", '{"prompt": "...", "completion": "..."}') from None
            if not isinstance(values, dict):
                raise _refused(path, place, "is not an object of fields", '{"prompt": "...", "completion": "..."}')
            yield Row(place, values)


def _csv(path: Path) -> Iterator[Row]:
    limit = csv.field_size_limit(LONGEST_CELL)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            names = next(reader, [])
            if len(set(names)) != len(names) or "" in names:
                raise _refused(path, "line 1", f"{names} are no names of columns, each once", "prompt,completion")
            for number, cells in enumerate((cells for cells in reader if cells), 1):
                place = f"row {number} (line {reader.line_num})"
                if len(cells) != len(names):
                    what = f"has {len(cells)} cells, and there are {len(names)} columns"
                    raise _refused(path, place, what, 'texts with a comma go into "quotes"')
                yield Row(place, dict(zip(names, cells, strict=True)))
    except csv.Error as error:
        raise _refused(path, f"line {reader.line_num}", f"is not CSV: {error}", None) from None
    finally:
        csv.field_size_limit(limit)


def _parquet(path: Path) -> Iterator[Row]:
    _need_pyarrow(path.name)
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            row = 0
            for part in file.iter_batches():
                for values in part.to_pylist():
                    row += 1
                    yield Row(f"row {row}", {name: _without_fillers(value) for name, value in values.items()})
    except pyarrow.ArrowException as error:
        raise _refused(path, "", f"is not Parquet: {error}", None) from None


def _need_pyarrow(name: str) -> None:
    if importlib.util.find_spec("pyarrow") is None:
        what = "Parquet is read with pyarrow, which is not installed here"
        raise InvalidData(name, [Problem("", what, "pip install pyarrow")])


def _without_fillers(value: Any) -> Any:
    """Within a column, all objects have the same fields: those that one of them has not got are None."""
    if isinstance(value, dict):
        return {name: _without_fillers(one) for name, one in value.items() if one is not None}
    return [_without_fillers(one) for one in value] if isinstance(value, list) else value


def _refused(path: Path, where: str, message: str, hint: str | None) -> InvalidData:
    return InvalidData(path.name, [Problem(where, message, hint)])
