"""Vast.ai's filters: {"field": {"op": value}}. Clients send numbers as texts: values are compared as what they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from providers.emulators.vast.errors import RefusedAnswer

Row = Mapping[str, Any]

_OPS: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": lambda value, wanted: bool(value == wanted),
    "neq": lambda value, wanted: bool(value != wanted),
    "gt": lambda value, wanted: bool(value > wanted),
    "gte": lambda value, wanted: bool(value >= wanted),
    "lt": lambda value, wanted: bool(value < wanted),
    "lte": lambda value, wanted: bool(value <= wanted),
    "in": lambda value, wanted: value in wanted,
    "notin": lambda value, wanted: value not in wanted,
}


def matching(rows: Iterable[Row], filters: Mapping[str, Any], known: frozenset[str]) -> list[Row]:
    """The rows that pass all filters. Raises Refused for fields and operators that are not known."""
    for field, conditions in filters.items():
        if field not in known:
            raise RefusedAnswer(400, "invalid_request", f"error 400/1: no such column {field!r}")
        if not isinstance(conditions, dict) or not set(conditions) <= set(_OPS):
            raise RefusedAnswer(400, "invalid_request", f"error 400/2: filter on {field!r} is {conditions!r}")
    return [row for row in rows if _passes(row, filters)]


def ordered(rows: list[Row], order: Any) -> list[Row]:
    """By [["field", "asc" or "desc"], ...] or [{"col": ..., "dir": ...}, ...]; rows without a value come last."""
    for field, direction in reversed(_keys(order)):
        there = [row for row in rows if meant(row.get(field)) is not None]
        missing = [row for row in rows if meant(row.get(field)) is None]
        there.sort(key=lambda row: _sort_key(row[field]), reverse=direction == "desc")
        rows = [*there, *missing]
    return rows


def meant(value: Any) -> Any:
    """What a value stands for: "1" is the number, "true" the truth."""
    if not isinstance(value, str):
        return value
    stripped = value.strip()
    if stripped.lower() in {"true", "false"}:
        return stripped.lower() == "true"
    try:
        return float(stripped)
    except ValueError:
        return stripped


def _country(place: str | None) -> str:
    return (place or "").rpartition(",")[2].strip()


def _driver_number(version: str) -> int:
    parts = [int(part) for part in version.split(".")]
    return sum(part * 1_000 ** (2 - place) for place, part in enumerate(parts))


# What a search compares is not what a row shows: a place is found by its country's code, 535.86.05 as 535086005.
_FOUND_BY: Mapping[str, Callable[[Any], Any]] = {"geolocation": _country, "driver_version": _driver_number}


def _passes(row: Row, filters: Mapping[str, Any]) -> bool:
    for field, conditions in filters.items():
        value = _FOUND_BY.get(field, meant)(row.get(field))
        for operator, wanted in conditions.items():
            told = [meant(each) for each in wanted] if isinstance(wanted, list) else meant(wanted)
            try:
                if not _OPS[operator](value, told):
                    return False
            except TypeError:
                return False  # null, or a text against a number
    return True


def _keys(order: Any) -> list[tuple[str, str]]:
    keys = []
    for each in order if isinstance(order, list) else []:
        if isinstance(each, list) and len(each) == 2:
            keys.append((str(each[0]), str(each[1])))
        elif isinstance(each, dict) and "col" in each:
            keys.append((str(each["col"]), str(each.get("dir", "asc"))))
    return keys


def _sort_key(value: Any) -> tuple[int, float, str]:
    read = meant(value)
    if isinstance(read, int | float):
        return (0, float(read), "")
    return (1, 0.0, str(read))
