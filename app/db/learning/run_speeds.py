"""How fast the runs of jobs make progress: the present ones, and those before them on other GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.progress import ProgressRate
from app.db.arrays import is_one_of
from app.db.tables import allocations, jobs, metric_points, nodes, run_jobs

_POINTS = 50
_EARLIER_POINTS = 2_000


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


async def earlier_steps(connection: AsyncConnection, job_ids: Sequence[str]) -> dict[str, dict[str, float]]:
    """By job, how many milliseconds a step took in its earlier runs, by type of GPU: the newest on each, as far as its
    newest points go back. Jobs that change their number of GPUs as they run are left out."""
    points = metric_points.c
    newest = (
        select(points.epoch, points.step, points.at_ms)
        .where(points.job_id == jobs.c.id)
        .order_by(points.step.desc())
        .limit(_EARLIER_POINTS)
        .lateral("newest")
    )
    point = newest.c
    rows = await connection.execute(
        select(jobs.c.id, nodes.c.gpu_type)
        .add_columns(func.min(point.step), func.min(point.at_ms), func.max(point.step), func.max(point.at_ms))
        .select_from(jobs)
        .join(newest, true())
        .join(run_jobs, (run_jobs.c.job_id == jobs.c.id) & (run_jobs.c.epoch == point.epoch))
        .join(allocations, allocations.c.run_id == run_jobs.c.run_id)
        .join(nodes, nodes.c.id == allocations.c.node_id)
        .where(is_one_of(jobs.c.id, job_ids), ~jobs.c.elastic, point.epoch < jobs.c.epoch)
        .group_by(jobs.c.id, point.epoch, nodes.c.gpu_type)
        .order_by(jobs.c.id, point.epoch)
    )
    found: dict[str, dict[str, float]] = {}
    for job_id, gpu_type, *span in rows:
        step_ms = ProgressRate(*(int(number) for number in span)).step_ms()
        if step_ms is not None:
            found.setdefault(job_id, {})[gpu_type] = step_ms
    return found
