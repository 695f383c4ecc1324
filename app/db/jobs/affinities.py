"""Beside whom jobs are placed: their labels, and what their templates ask of others' labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row

from app.core.model.job import Affinity


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


def _labels(given: Mapping[str, str] | None) -> frozenset[str]:
    return frozenset(f"{name}={value}" for name, value in (given or {}).items())
