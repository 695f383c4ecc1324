"""On how many machines a job begins, where its owner wants another number of them than it had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.core.gang_wishes import WANTED, with_nodes
from app.db.reading.sizes import MACHINES_CHANGED
from app.db.transitions import Event


def may_begin_on(resources: Mapping[str, Any]) -> frozenset[int]:
    """Numbers of machines that a job may begin on: as many as it had, and as its owner wants."""
    wanted = _number(resources, WANTED)
    return frozenset({_number(resources, "nodes") or 1, *(() if wanted is None else (wanted,))})


def begun_on(resources: Mapping[str, Any], count: int, run_id: str) -> tuple[Mapping[str, Any], Event] | None:
    """What a job asks for once it has begun on so many machines, and what it is told; None where that is no change.
    One that has begun on as many as it had goes on wanting another number."""
    before = _number(resources, "nodes") or 1
    if count == before:
        return None
    asks = with_nodes(resources, count)
    machines = "1 machine" if count == 1 else f"{count} machines"
    data = {"run_id": run_id, "nodes": count, "nodes_before": before}
    return asks, Event(MACHINES_CHANGED, f"begins on {machines}, after {before}, as its owner wants", data)


def _number(resources: Mapping[str, Any], name: str) -> int | None:
    found = resources.get(name)
    return found if type(found) is int else None
