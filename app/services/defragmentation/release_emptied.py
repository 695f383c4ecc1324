"""A node is vacated: its rent ends, and whoever has moved for it is told what that was good for."""

from __future__ import annotations

from dataclasses import replace

from app.core.defragmentation import Goal, PlannedRelease, ReleaseState
from app.core.model.money import Money
from app.db.connection import Connection
from app.db.decisions.enactment import held_gpus
from app.db.defragmentation.defragmentations import DefragRow, set_release
from app.db.defragmentation.fleet import pauses_of
from app.db.lock_order import lock_scope
from app.db.transitions import Event, add_job_event, add_node_event
from app.ports.clock import IdSource
from app.services.nodes.release_node import release_node

DEFRAGMENTED = "defragmented"


async def release_emptied(
    connection: Connection, ids: IdSource, row: DefragRow, release: PlannedRelease, *, version: int | None, now_ms: int
) -> PlannedRelease | None:
    """`version`: of the rented node as it was seen empty; None: GPUs of a host, which are free already. None where the
    node has moved on meanwhile: it is looked at again."""
    moved = sorted({step.job_id for step in release.steps if step.move_id is not None})
    found = await lock_scope(connection, [*moved, *([] if version is None else [release.node_id])])
    event = await _told(connection, row, release)
    if version is not None:
        if found.get(release.node_id) != version or await held_gpus(connection, release.node_id):
            return None
        await add_node_event(connection, release.node_id, event, now_ms=now_ms)
        await release_node(connection, ids, release.node_id, event.message, now_ms=now_ms)
    for job_id in moved:
        if job_id in found:
            await add_job_event(connection, job_id, event, now_ms=now_ms)
    over = replace(release, state=ReleaseState.FREED)
    await set_release(connection, row.id, over, ended_ms=now_ms, why=event.message)
    return over


async def _told(connection: Connection, row: DefragRow, release: PlannedRelease) -> Event:
    """What it saved and what it has cost, as far as that is measured by now."""
    moves = {step.move_id: step.gpus for step in release.steps if step.move_id is not None}
    pauses = await pauses_of(connection, moves)
    gpu_ms = sum(moves[move_id] * pause_ms for move_id, pause_ms in pauses.items())
    rented = row.goal is Goal.RENT
    saved = (
        f"its rent ends, which saves {Money(release.saved_micros)}" if rented else f"all {release.gpus} GPUs are free"
    )
    measured = f"{gpu_ms / 1000:.1f} GPU-seconds of pause" if pauses else "pauses that are not measured yet"
    message = (
        f"{release.name} is vacated: {saved}, for {len(moves)} move{'s' * (len(moves) != 1)} with {measured} ({row.id})"
    )
    data = {
        "defragmentation": row.id,
        "node": release.node_id,
        "saved_micros": release.saved_micros,
        "expected_cost_micros": release.cost_micros,
        "moves": len(moves),
        "pause_gpu_s": gpu_ms / 1000,
    }
    return Event(DEFRAGMENTED, message, data)
