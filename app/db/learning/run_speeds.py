"""How fast the present runs of jobs make progress."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.progress import ProgressRate
from app.db.arrays import is_one_of
from app.db.tables import jobs, metric_points

_POINTS = 50


async def paces_of(connection: AsyncConnection, job_ids: Sequence[str]) -> dict[str, ProgressRate]:
    """The first and last of the newest points that each job's present run has measured; jobs without two are left out.

    Reads at most so many rows per job, by the primary key.
    """
    newest = (
        select(metric_points.c.step, metric_points.c.at_ms)
        .where(metric_points.c.job_id == jobs.c.id, metric_points.c.epoch == jobs.c.epoch)
        .order_by(metric_points.c.step.desc())
        .limit(_POINTS)
        .lateral("newest")
    )
    point = newest.c
    rows = await connection.execute(
        select(jobs.c.id, func.min(point.step), func.min(point.at_ms), func.max(point.step), func.max(point.at_ms))
        .select_from(jobs)
        .join(newest, true())
        .where(is_one_of(jobs.c.id, job_ids))
        .group_by(jobs.c.id)
        .having(func.count() > 1)
    )
    return {row[0]: ProgressRate(*(int(number) for number in row[1:])) for row in rows}
