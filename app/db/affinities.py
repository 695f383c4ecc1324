"""Beside whom jobs are placed: their labels, and what their templates ask of others' labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row

from app.core.model.job import Affinity


def affinities_of(rows: Sequence[Row[Any]]) -> dict[str, Affinity]:
    """By job. Empty where no job asks for anything: then nobody's labels matter."""
    if not any(row.affinity.get("affinity") or row.affinity.get("anti_affinity") for row in rows):
        return {}
    found = {
        row.id: Affinity(
            own=_labels(row.labels),
            beside=_labels(row.affinity.get("affinity")),
            apart=_labels(row.affinity.get("anti_affinity")),
        )
        for row in rows
    }
    return {job_id: affinity for job_id, affinity in found.items() if affinity != Affinity()}


def _labels(given: Mapping[str, str] | None) -> frozenset[str]:
    return frozenset(f"{name}={value}" for name, value in (given or {}).items())
