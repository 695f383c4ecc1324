"""Defragmentations as people read them: what was planned, and what has come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.core import codec
from app.core.defragmentation import DefragPlan
from app.db.connection import Connection
from app.db.defragmentation.defragmentations import DefragRow, ReleaseRow, list_defragmentations, releases_of
from app.db.defragmentation.fleet import pauses_of
from app.services.defragmentation.ask_defragmentation import read_defragmentation


@dataclass(frozen=True, slots=True)
class ShownDefragmentation:
    """`pauses`: of its moves that are measured, in milliseconds."""

    row: DefragRow
    releases: Sequence[ReleaseRow]
    pauses: Mapping[str, int]


def found_of(plan: DefragPlan) -> dict[str, Any]:
    """What a plan says beside its releases, as it is kept."""
    return {
        "nodes": plan.nodes,
        "occupied": plan.occupied,
        "least": plan.least,
        "settled": plan.settled,
        "left_alone": dict(plan.left_alone),
        "names": dict(plan.names),
        "held": {job_id: list(nodes) for job_id, nodes in plan.held},
        "repairs": codec.encode(plan.repairs),
    }


async def show_defragmentation(connection: Connection, row_id: str) -> ShownDefragmentation:
    """Raises NotFound."""
    return (await _shown(connection, [await read_defragmentation(connection, row_id)]))[0]


async def show_defragmentations(
    connection: Connection, *, before: str | None, limit: int
) -> list[ShownDefragmentation]:
    """The newest first."""
    return await _shown(connection, await list_defragmentations(connection, before=before, limit=limit))


async def _shown(connection: Connection, rows: Sequence[DefragRow]) -> list[ShownDefragmentation]:
    releases = await releases_of(connection, [row.id for row in rows])
    steps = (step for some in releases.values() for one in some for step in one.release.steps)
    pauses = await pauses_of(connection, {step.move_id for step in steps if step.move_id is not None})
    return [ShownDefragmentation(row, releases.get(row.id, []), pauses) for row in rows]
