"""Beside whom jobs are placed: their labels, and what their templates ask of others' labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Row

from app.core.model.job import Affinity
from app.db.tables import jobs
from app.db.unreadable import RowReading


def affinities_of(rows: Sequence[Row[Any]], reading: RowReading) -> dict[str, Affinity]:
    """By job. Empty where no job asks for anything: then nobody's labels matter."""
    if not any(reading.of(jobs.name, row.id, partial(_asks, row)) for row in rows):
        return {}
    found = {row.id: reading.of(jobs.name, row.id, partial(_affinity, row)) for row in rows}
    return {job_id: affinity for job_id, affinity in found.items() if affinity not in (None, Affinity())}


def _asks(row: Row[Any]) -> bool:
    return bool(row.affinity.get("affinity") or row.affinity.get("anti_affinity"))


def _affinity(row: Row[Any]) -> Affinity:
    return Affinity(
        own=_labels(row.labels),
        beside=_labels(row.affinity.get("affinity")),
        apart=_labels(row.affinity.get("anti_affinity")),
    )


def _labels(given: Mapping[str, str] | None) -> frozenset[str]:
    return frozenset(f"{name}={value}" for name, value in (given or {}).items())
