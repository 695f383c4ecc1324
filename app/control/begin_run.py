"""A run begins: it holds its GPUs, and its job belongs to it. So do the runs that share its process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.control.context import ControlContext
from app.control.renting import MovedOnError
from app.core.model.job import PLACEABLE_JOB_STATES, JobState
from app.core.model.node import Tier
from app.core.model.run import RunPurpose
from app.db.connection import Connection
from app.db.decisions.enactment import PlacedJob, add_run, job_to_place
from app.db.transitions import Event, move_job
from app.services.runs.capabilities import jobs_beside


@dataclass(frozen=True, slots=True)
class Held:
    """GPUs that are given to a run."""

    node_id: str
    tier: Tier
    gpu_indices: Sequence[int]


async def begin_run(
    connection: Connection,
    context: ControlContext,
    job: PlacedJob,
    held: Held,
    reason: str,
    facts: Mapping[str, object],
    *,
    now_ms: int,
    purpose: RunPurpose = RunPurpose.TRAIN,
) -> None:
    """The job is locked, and so are those that belong together with it. Of jobs that share a process each gets a run,
    in one transaction, with an epoch of its own, on the same GPUs. Raises MovedOnError.
    """
    beside = await _beside(connection, job, purpose)
    run_id = await _begin(connection, context, job, held, reason, facts, now_ms=now_ms, purpose=purpose)
    for other in beside:
        shared = {**facts, "companion_of": run_id}
        await _begin(connection, context, other, held, reason, shared, now_ms=now_ms, companion_of=run_id)


async def _beside(connection: Connection, job: PlacedJob, purpose: RunPurpose) -> list[PlacedJob]:
    """Who trains in the same process. They begin when all have left where they were."""
    found = []
    for job_id in await jobs_beside(connection, job.job_id, purpose):
        other = await job_to_place(connection, job_id)
        if other is None or other.state not in PLACEABLE_JOB_STATES:
            raise MovedOnError(f"{job_id}, which trains in the same process, has not left its last one")
        found.append(other)
    return found


async def _begin(
    connection: Connection,
    context: ControlContext,
    job: PlacedJob,
    held: Held,
    reason: str,
    facts: Mapping[str, object],
    *,
    now_ms: int,
    companion_of: str | None = None,
    purpose: RunPurpose = RunPurpose.TRAIN,
) -> str:
    """The job now belongs to the run: its epoch is the run's, and every older writer is fenced."""
    run_id = context.ids.new("run")
    await add_run(
        connection,
        job,
        run_id=run_id,
        allocation_id=context.ids.new("aloc"),
        node_id=held.node_id,
        tier=held.tier,
        gpu_indices=held.gpu_indices,
        now_ms=now_ms,
        companion_of=companion_of,
        purpose=purpose,
    )
    epoch = job.next_epoch
    told = reason if job.plan is None else f"{reason}; {job.plan}"
    event = Event(JobState.STARTING, told, {"run_id": run_id, "node_id": held.node_id, "epoch": epoch, **facts})
    moved = await move_job(
        connection, job.job_id, JobState.STARTING, event, now_ms=now_ms, epoch=epoch, wait_reason=None
    )
    if not moved:
        raise MovedOnError(f"{job.job_id} does not wait for a place")
    return run_id
