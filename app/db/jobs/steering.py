"""Jobs as those who steer them see them: locked, with their limits, and changed without a change of state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.foreign import read_as
from app.core.model.job import JobState, PauseReason
from app.core.model.money import Money
from app.core.steering import JobStanding
from app.db import notify
from app.db.arrays import is_one_of
from app.db.lock_order import lock_jobs
from app.db.tables import jobs

_COLUMNS = (
    jobs.c.id,
    jobs.c.state,
    jobs.c.pause_reason,
    jobs.c.spent_micros,
    jobs.c.max_cost_micros,
    jobs.c.first_running_ms,
    jobs.c.max_duration_ms,
)


async def lock_standing(
    connection: AsyncConnection, job_id: str, *, project_id: str | None = None
) -> JobStanding | None:
    """Lock the job (and the one it is merged with) and read how it stands now; None when there is no such job (of this
    project)."""
    await lock_jobs(connection, [job_id])
    statement = select(*_COLUMNS).where(jobs.c.id == job_id)
    if project_id is not None:
        statement = statement.where(jobs.c.project_id == project_id)
    row = (await connection.execute(statement)).mappings().one_or_none()
    return None if row is None else _standing(row)


async def standings_of(connection: AsyncConnection, job_ids: Sequence[str]) -> dict[str, JobStanding]:
    """How these jobs stand. The caller holds their locks."""
    rows = await connection.execute(select(*_COLUMNS).where(is_one_of(jobs.c.id, job_ids)).order_by(jobs.c.id))
    return {row["id"]: _standing(row) for row in rows.mappings()}


async def read_settings(connection: AsyncConnection, job_id: str) -> Mapping[str, Any]:
    """What the owner of a locked job may change: deadline, limits and labels, by column."""
    limits = (jobs.c.max_cost_micros, jobs.c.max_duration_ms, jobs.c.max_hourly_micros, jobs.c.max_wait_ms)
    columns = (jobs.c.deadline_ms, *limits, jobs.c.retries, jobs.c.labels)
    return dict((await connection.execute(select(*columns).where(jobs.c.id == job_id))).one()._mapping)


async def change_job(connection: AsyncConnection, job_id: str, columns: Mapping[str, Any]) -> None:
    """Write columns of a locked job. What was decided on the old ones is stale, and is decided anew at once."""
    await connection.execute(
        update(jobs).where(jobs.c.id == job_id).values(row_version=jobs.c.row_version + 1, **columns)
    )
    await notify.control(connection)
    await notify.job(connection, job_id)


async def read_asks(connection: AsyncConnection, job_id: str) -> dict[str, Any]:
    """What a locked job asks for, as its row has it; nothing where that makes no sense."""
    found = (await connection.execute(select(jobs.c.resources).where(jobs.c.id == job_id))).scalar_one()
    return dict(found) if isinstance(found, dict) else {}


def _standing(row: Mapping[Any, Any]) -> JobStanding:
    return JobStanding(
        job_id=row["id"],
        state=read_as(JobState, row["state"]),
        pause_reason=None if row["pause_reason"] is None else read_as(PauseReason, row["pause_reason"]),
        spent=Money(row["spent_micros"]),
        max_cost=None if row["max_cost_micros"] is None else Money(row["max_cost_micros"]),
        first_running_ms=row["first_running_ms"],
        max_duration_ms=row["max_duration_ms"],
    )
