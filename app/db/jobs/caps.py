"""Jobs that have reached a limit their user set."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Numeric, Text, cast, exists, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.job import JobState
from app.db.tables import job_events, jobs

LIMIT_NEAR = "limit_near"  # an event
_GOING_ON = (JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.WAITING)
_SAVES_TO_GO_ON = (jobs.c.state == JobState.CHECKPOINTING) & jobs.c.pause_reason.is_(None)


async def jobs_near_a_cap(connection: AsyncConnection, *, now_ms: int) -> list[str]:
    """Ids of running jobs that have used up nine tenths of a limit, whose code does not say that it saves or whose
    checkpoints are refused, and that were not told of this limit yet; ascending."""
    row, told = jobs.c, job_events.c
    cost = (_wide(row.spent_micros) * 10 >= _wide(row.max_cost_micros) * 9) & (row.spent_micros < row.max_cost_micros)
    left_ms = _wide(row.first_running_ms) + row.max_duration_ms - now_ms
    time = (left_ms * 10 <= row.max_duration_ms) & (left_ms > 0)
    limits = ((told.data["max_cost_micros"], row.max_cost_micros), (told.data["max_duration_ms"], row.max_duration_ms))
    known = [limit.astext.is_not_distinct_from(cast(now, Text)) for limit, now in limits]
    was_told = exists().where(told.job_id == row.id, told.kind == LIMIT_NEAR, *known)
    loses = row.saves_ms.is_(None) | row.refused_ms.is_not(None)
    rows = await connection.execute(
        select(row.id).where(row.state == JobState.RUNNING, loses, or_(cost, time), ~was_told).order_by(row.id)
    )
    return list(rows.scalars())


async def capped_jobs(connection: AsyncConnection, *, now_ms: int) -> list[str]:
    """Ids of jobs that are at or over a limit and have not been asked to leave for it, ascending."""
    row = jobs.c
    going_on = row.state.in_(_GOING_ON)
    rows = await connection.execute(
        select(row.id)
        .where(
            or_(
                (going_on | _SAVES_TO_GO_ON) & (row.spent_micros >= row.max_cost_micros),
                going_on & (_wide(row.first_running_ms) + row.max_duration_ms <= now_ms),
            )
        )
        .order_by(row.id)
    )
    return list(rows.scalars())


def _wide(column: ColumnElement[int]) -> ColumnElement[Any]:
    """For sums over all jobs: one row whose sum is out of range must not end the statement for the others."""
    return cast(column, Numeric)
