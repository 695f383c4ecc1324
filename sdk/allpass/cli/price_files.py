"""Prices as they are typed, or written in a file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.template_options import dollars

EXAMPLE = "allpass providers prices modal H100=3.95"
_LARGEST_BYTES = 1_000_000
_MOST_PRICES = 200  # as allpass.wire.price_lists has it, which takes its time to load
_HEADINGS = {"name", "gpu", "item"}


def typed_prices(words: Iterable[str]) -> dict[str, float]:
    """Of NAME=DOLLARS, each."""
    pairs = [word.partition("=") for word in words]
    for name, equals, _ in pairs:
        if not equals:
            raise _wrong(f"{name!r} is not NAME=DOLLARS")
    return _prices((name, text) for name, _, text in pairs)


def prices_in(path: Path) -> tuple[dict[str, float], str | None]:
    """The prices of a file, and the day that it names for them. JSON: an object of prices, or one with `prices` and
    `as_of`; anything else is read as CSV, a name and a price in each line."""
    text = _text(path)
    if path.suffix.lower() != ".json" and not text.lstrip().startswith("{"):
        return _prices(_lines(text, path)), None
    try:
        value = json.loads(text, object_pairs_hook=lambda pairs: pairs)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"--from {path}: no JSON: {error}") from None
    if not isinstance(value, list) or not all(isinstance(pair, tuple) for pair in value):
        raise _wrong(f'--from {path}: expected an object, as {{"H100": 3.95}}')
    fields = dict(value)
    if "prices" not in fields:
        return _prices(value), None
    day = fields.get("as_of")
    if not isinstance(fields["prices"], list) or not isinstance(day, str | None):
        raise _wrong(f'--from {path}: expected {{"prices": {{"H100": 3.95}}, "as_of": "2026-11-20"}}')
    return _prices(fields["prices"]), day


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
        if len(content) > _LARGEST_BYTES:
            raise _wrong(f"--from {path}: more than {_LARGEST_BYTES} bytes are no price list")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise _wrong(f"--from {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise _wrong(f"--from {path}: not UTF-8 text") from None


def _lines(text: str, path: Path) -> list[tuple[str, str]]:
    rows = [row for row in csv.reader(io.StringIO(text)) if any(cell.strip() for cell in row)]
    if rows and rows[0][0].strip().lower() in _HEADINGS:
        rows = rows[1:]
    for number, row in enumerate(rows, start=1):
        if len(row) != 2:
            raise _wrong(f"--from {path}: price {number} has {len(row)} columns; expected a name and dollars per hour")
    return [(row[0], row[1]) for row in rows]


def _prices(pairs: Iterable[Any]) -> dict[str, float]:
    """Each name once."""
    found: dict[str, float] = {}
    for pair in pairs:
        if not isinstance(pair, tuple):
            raise _wrong(f"{pair!r:.80} is no price with a name")
        name, value = str(pair[0]).strip(), pair[1]
        if name in found:
            raise _wrong(f"{name} has two prices")
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise _wrong(f"{name}: {value!r:.80} is not an amount in dollars")
        found[name] = _price(name, str(value))
    if len(found) > _MOST_PRICES:
        raise _wrong(f"{len(found)} prices; at most {_MOST_PRICES} are set at once")
    return found


def _price(name: str, text: str) -> float:
    try:
        return dollars(name, text)
    except CommandFailed as error:
        raise _wrong(str(error)) from None


def _wrong(message: str) -> CommandFailed:
    return CommandFailed(message, hint=EXAMPLE, code=WRONG_USAGE)
