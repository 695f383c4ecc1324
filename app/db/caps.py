"""Jobs that have reached a limit their user set."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.job import JobState
from app.core.model.money import Money
from app.db.tables import jobs

_MAY_COST = (JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.WAITING)
_MAY_LAST = (*_MAY_COST, JobState.CHECKPOINTING)


@dataclass(frozen=True, slots=True)
class CappedJob:
    """A job and its limits. `first_running_ms`: when its code first ran, None before."""

    job_id: str
    state: JobState
    spent: Money
    max_cost: Money | None
    first_running_ms: int | None
    max_duration_ms: int | None

    def over_cost(self) -> bool:
        return self.max_cost is not None and self.spent >= self.max_cost and self.state in _MAY_COST

    def over_duration(self, now_ms: int) -> bool:
        if self.max_duration_ms is None or self.first_running_ms is None:
            return False
        return now_ms - self.first_running_ms >= self.max_duration_ms and self.state in _MAY_LAST


async def capped_jobs(connection: AsyncConnection, *, now_ms: int) -> list[str]:
    """Ids of unfinished jobs that are at or over a limit, ascending."""
    row = jobs.c
    rows = await connection.execute(
        select(row.id)
        .where(
            or_(
                row.state.in_(_MAY_COST) & (row.spent_micros >= row.max_cost_micros),
                row.state.in_(_MAY_LAST) & (row.first_running_ms + row.max_duration_ms <= now_ms),
            )
        )
        .order_by(row.id)
    )
    return list(rows.scalars())


async def lock_capped(connection: AsyncConnection, job_id: str) -> CappedJob:
    """Lock the job and read how it stands now."""
    row = (await connection.execute(select(jobs).where(jobs.c.id == job_id).with_for_update())).one()
    return CappedJob(
        job_id=row.id,
        state=JobState(row.state),
        spent=Money(row.spent_micros),
        max_cost=None if row.max_cost_micros is None else Money(row.max_cost_micros),
        first_running_ms=row.first_running_ms,
        max_duration_ms=row.max_duration_ms,
    )
