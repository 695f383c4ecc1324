"""Jobs that have reached a limit their user set."""

from __future__ import annotations

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.job import JobState
from app.db.tables import jobs

_GOING_ON = (JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.WAITING)
_SAVES_TO_GO_ON = (jobs.c.state == JobState.CHECKPOINTING) & jobs.c.pause_reason.is_(None)


async def capped_jobs(connection: AsyncConnection, *, now_ms: int) -> list[str]:
    """Ids of jobs that are at or over a limit and have not been asked to leave for it, ascending."""
    row = jobs.c
    going_on = row.state.in_(_GOING_ON)
    rows = await connection.execute(
        select(row.id)
        .where(
            or_(
                (going_on | _SAVES_TO_GO_ON) & (row.spent_micros >= row.max_cost_micros),
                going_on & (row.first_running_ms + row.max_duration_ms <= now_ms),
            )
        )
        .order_by(row.id)
    )
    return list(rows.scalars())
