"""The first arrow of a move: its target holds GPUs and prepares, its source trains on."""

from __future__ import annotations

from collections.abc import Sequence

from app.control.context import ControlContext
from app.control.dropping import MovedOnError
from app.control.renting import Rentals, free_place
from app.core.model.job import JobState
from app.core.model.node import Tier
from app.core.model.plan import Migrate, MoveOut
from app.core.model.run import RunState
from app.db.connection import Connection
from app.db.decisions.enactment import PlacedJob, job_to_place, places_on
from app.db.decisions.placements import NewRun, add_nodes, add_runs, occupy_nodes
from app.db.moves.planned_moves import add_move, open_move_of_job
from app.db.runs.live_runs import lock_run, mate_of
from app.db.transitions import Event, add_job_event


async def migrate(connection: Connection, context: ControlContext, action: Migrate, *, now_ms: int) -> None:
    """To a node that is ready. Raises MovedOnError."""
    job = await _mover(connection, action)
    places = (await places_on(connection, [action.node_id])).get(action.node_id)
    tier = free_place(action.node_id, places, action.gpu_indices)
    await _begin(connection, context, job, action, action.node_id, tier, action.gpu_indices, now_ms=now_ms)
    await occupy_nodes(connection, [action.node_id])


async def move_out(connection: Connection, context: ControlContext, action: MoveOut, *, now_ms: int) -> None:
    """To a machine that is rented for it: the target is there before its node is, and prepares when that has come.
    Raises MovedOnError."""
    job = await _mover(connection, action)
    offer = action.offer
    rentals = await Rentals.read(connection, context, [offer], {job.project_id}, now_ms=now_ms)
    node = rentals.rent(job, offer, action.reason)
    await add_nodes(connection, [node], now_ms=now_ms)
    await _begin(connection, context, job, action, node.node_id, offer.tier, action.gpu_indices, now_ms=now_ms)


async def _mover(connection: Connection, action: Migrate | MoveOut) -> PlacedJob:
    """The job, if its run trains it alone and it neither moves nor is to leave."""
    job = await job_to_place(connection, action.job_id)
    source = await lock_run(connection, action.run_id)
    if job is None or job.state is not JobState.RUNNING or job.leaving:
        raise MovedOnError(f"{action.job_id} does not train, or is to leave")
    if source is None or source.state is not RunState.RUNNING or source.job_ids != (action.job_id,):
        raise MovedOnError(f"{action.run_id} does not train this job alone")
    if await mate_of(connection, action.run_id) is not None:
        raise MovedOnError(f"{action.run_id} shares its process with another run, and leaves by stop-and-go")
    if await open_move_of_job(connection, action.job_id) is not None:
        raise MovedOnError(f"{action.job_id} moves already")
    return job


async def _begin(
    connection: Connection,
    context: ControlContext,
    job: PlacedJob,
    action: Migrate | MoveOut,
    node_id: str,
    tier: Tier,
    gpu_indices: Sequence[int],
    *,
    now_ms: int,
) -> None:
    run_id = context.ids.new("run")
    target = NewRun(
        run_id=run_id,
        allocation_id=context.ids.new("aloc"),
        project_id=job.project_id,
        job_id=job.job_id,
        epoch=job.next_epoch + 1,  # the next one is the job's own when its source ends
        node_id=node_id,
        tier=tier,
        gpu_indices=gpu_indices,
        state=RunState.STANDBY,
    )
    await add_runs(connection, [target], now_ms=now_ms)
    runs = {"source_run_id": action.run_id, "target_run_id": run_id}
    move_id = context.ids.new("move")
    await add_move(connection, move_id, job_id=job.job_id, reason=action.reason, now_ms=now_ms, **runs)
    facts = {**runs, "node_id": node_id, "gpu_indices": list(gpu_indices)}
    await add_job_event(connection, job.job_id, Event("move_begun", action.reason, facts), now_ms=now_ms)
