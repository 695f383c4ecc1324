"""Runs that may keep their GPUs whatever they are to use, and that it was noted of them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.keeping_gpus import WatchedRun
from app.core.model.job import JobState
from app.core.model.run import RunPurpose, RunState
from app.db.runs.sizes import gpus_held, gpus_told
from app.db.tables import allocations, jobs, run_jobs, runs


async def watched_runs(connection: AsyncConnection) -> list[WatchedRun]:
    """Runs of elastic jobs that have said nothing, and those that were asked for another number: of which it was not
    noted yet that they keep what they have."""
    of = runs.c
    companions = runs.alias("companions")
    is_shared = exists().where(companions.c.companion_of == of.id)
    is_noted = of.keeps_gpus_ms.is_not(None) & (of.keeps_gpus_ms >= func.coalesce(of.wanted_ms, 0))
    rows = await connection.execute(
        select(
            *(of.id, of.wanted_gpus, of.wanted_ms, of.gpus_told, of.running_ms, of.resumed_from_step),
            *(jobs.c.id.label("job_id"), jobs.c.resources, jobs.c.step),
            *(allocations.c.gpu_indices, allocations.c.from_ms),
        )
        .join(allocations, (allocations.c.run_id == of.id) & allocations.c.to_ms.is_(None))
        .join(run_jobs, run_jobs.c.run_id == of.id)
        .join(jobs, (jobs.c.id == run_jobs.c.job_id) & (jobs.c.epoch == run_jobs.c.epoch))
        .where(
            *(of.state == RunState.RUNNING, of.running_ms.is_not(None), of.purpose == RunPurpose.TRAIN, ~is_noted),
            *(of.companion_of.is_(None), of.member_of.is_(None), ~is_shared),
            *(jobs.c.state == JobState.RUNNING, jobs.c.pause_reason.is_(None)),
            or_(jobs.c.elastic & of.gpus_told.is_(None), of.wanted_gpus.is_not(None)),
        )
        .order_by(of.id)
    )
    return [_watched(row) for row in rows if row.gpu_indices]


def _watched(row: Any) -> WatchedRun:
    return WatchedRun(
        run_id=row.id,
        job_id=row.job_id,
        held=gpus_held(row.gpu_indices, row.wanted_gpus, row.resources),
        told=gpus_told(row.gpus_told),
        running_ms=row.running_ms,
        has_stepped=row.step > (row.resumed_from_step or 0),
        wanted_ms=max(row.wanted_ms or 0, row.from_ms),
    )


async def has_been_told(connection: AsyncConnection, job_id: str) -> bool:
    """Whether it was noted of any run of this job."""
    statement = (
        select(runs.c.id)
        .join(run_jobs, run_jobs.c.run_id == runs.c.id)
        .where(run_jobs.c.job_id == job_id, runs.c.keeps_gpus_ms.is_not(None))
        .limit(1)
    )
    return (await connection.execute(statement)).first() is not None


async def kept_since(connection: AsyncConnection, run_id: str) -> int | None:
    """When that was noted of this run; None: it was not."""
    found = await connection.execute(select(runs.c.keeps_gpus_ms).where(runs.c.id == run_id))
    since: int | None = found.scalar_one_or_none()
    return since


async def set_kept(connection: AsyncConnection, run_id: str, *, now_ms: int | None) -> None:
    """Of a locked run. None: it is not so any more."""
    await connection.execute(update(runs).where(runs.c.id == run_id).values(keeps_gpus_ms=now_ms))
