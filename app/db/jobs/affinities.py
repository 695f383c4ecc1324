"""Beside whom jobs are placed: their labels, and what their templates ask of others' labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row

from app.core.model.job import ANY_NUMBER, Affinity, MostUnderOne


def asks_for_labels(row: Row[Any]) -> bool:
    """Whether the job asks for other jobs' labels. Where none does, nobody's labels matter."""
    return bool(row.affinity.get("affinity") or row.affinity.get("anti_affinity"))


def affinity_of(row: Row[Any]) -> Affinity:
    """Its own labels, and those that it asks for."""
    return Affinity(
        own=_labels(row.labels),
        beside=_labels(row.affinity.get("affinity")),
        apart=_labels(row.affinity.get("anti_affinity")),
    )


def most_under_one(asked: Mapping[str, Any]) -> MostUnderOne:
    """How many of its machines it may have under one switch and in one rack, as its template's `placement` says."""
    rack, switch = asked.get("most_per_rack"), asked.get("most_per_switch")
    return ANY_NUMBER if rack is None and switch is None else MostUnderOne(rack, switch)


def _labels(given: Mapping[str, str] | None) -> frozenset[str]:
    return frozenset(f"{name}={value}" for name, value in (given or {}).items())
