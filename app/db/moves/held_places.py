"""Who holds a place on a machine now, for those who clear them all."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.job import JobState
from app.core.model.run import RunState
from app.db.checkpoints.manifests import newest_before
from app.db.tables import jobs, run_jobs, runs

_ANY_EPOCH = 2**31 - 1


@dataclass(frozen=True, slots=True)
class HeldPlace:
    """A live run of a job. In a move, a job has two. `step` is the job's."""

    job_id: str
    job_name: str
    step: int
    run_id: str
    run_state: RunState


async def held_places(connection: AsyncConnection) -> list[HeldPlace]:
    """Every place that is held, of all projects, by job and run."""
    rows = await connection.execute(
        select(jobs.c.id, jobs.c.name, jobs.c.step, runs.c.id, runs.c.state)
        .join(run_jobs, run_jobs.c.job_id == jobs.c.id)
        .join(runs, runs.c.id == run_jobs.c.run_id)
        .where(runs.c.state != RunState.ENDED)
        .order_by(jobs.c.id, runs.c.id)
    )
    return [HeldPlace(job_id, name, step, run_id, RunState(state)) for job_id, name, step, run_id, state in rows]


@dataclass(frozen=True, slots=True)
class Rest:
    """A job without a place, and the step at which it goes on. None: it has saved nothing."""

    state: JobState
    saved_step: int | None


async def read_rest(connection: AsyncConnection, job_id: str) -> Rest:
    state = (await connection.execute(select(jobs.c.state).where(jobs.c.id == job_id))).scalar_one()
    newest = await newest_before(connection, job_id, _ANY_EPOCH)
    return Rest(JobState(state), None if newest is None else newest.step)
