"""Close a run that is over. What that means for its jobs is for `end_run` and `advance_move` to say."""

from __future__ import annotations

from app.core.model.node import Tier
from app.core.model.run import RunEnd, RunState
from app.db.checkpoints.manifests import abort_open_checkpoints
from app.db.checkpoints.parts import delete_parts
from app.db.connection import Connection
from app.db.runs.live_runs import RunRow, close_allocations, live_runs_of_node
from app.db.runs.members import close_member, gang_of
from app.db.transitions import Event, bump_desired, move_run
from app.ports.clock import IdSource
from app.services.nodes.release_node import release_node


async def close_run(
    connection: Connection, ids: IdSource, run: RunRow, run_end: RunEnd, message: str, *, now_ms: int
) -> None:
    """The locked run has ended: its GPUs are free, what it left open is given up, a node that dies with the
    last of its runs is let go, and its agent is told."""
    event = Event(f"run_{run_end}", message, {"tier": run.tier})
    columns = {"end_reason": run_end, "end_message": message, "ended_ms": now_ms}
    await move_run(connection, run.run_id, RunState.ENDED, event, now_ms=now_ms, **columns)
    await close_allocations(connection, run.run_id, now_ms=now_ms)
    await abort_open_checkpoints(connection, run.run_id)
    if run.tier is Tier.SERVERLESS and not await live_runs_of_node(connection, run.node_id):
        await release_node(connection, ids, run.node_id, f"its run ended: {message}", now_ms=now_ms)
    await bump_desired(connection, run.node_id)
    if run.node_rank is not None:
        await delete_parts(connection, run.run_id)
        await _close_members(connection, run, run_end, message, now_ms=now_ms)


async def _close_members(connection: Connection, run: RunRow, run_end: RunEnd, message: str, *, now_ms: int) -> None:
    """The run that leads those of a job on several machines has ended: so have the others. All of them are in the reach
    of the job, which is locked."""
    for one in await gang_of(connection, run.run_id):
        if one.run_id != run.run_id:
            told = {"end_reason": run_end, "end_message": message}
            await close_member(connection, one.run_id, one.node_id, now_ms=now_ms, **told)
