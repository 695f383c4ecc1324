"""A metric of a job as a curve is fitted to it: in order of steps, long series averaged in stretches."""

from __future__ import annotations

from sqlalchemy import Double, cast, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.metrics import LARGEST_VALUE
from app.db.tables import metric_points

MOST_POINTS = 120


async def averaged_metric(connection: AsyncConnection, job_id: str, name: str) -> tuple[tuple[float, float], ...]:
    """(step, value), each the mean of a stretch; at most `MOST_POINTS`, of equal numbers of points."""
    value = cast(metric_points.c["values"][name].astext, Double)
    stretch = func.ntile(MOST_POINTS).over(order_by=metric_points.c.step)
    points = (
        select(metric_points.c.step, value.label("value"), stretch.label("stretch"))
        .where(metric_points.c.job_id == job_id, metric_points.c["values"].has_key(name))
        .where(func.abs(value) <= LARGEST_VALUE)  # older rows may hold larger ones
        .subquery()
    )
    step = cast(func.avg(points.c.step), Double)
    rows = await connection.execute(
        select(step, func.avg(points.c.value)).group_by(points.c.stretch).order_by(points.c.stretch)
    )
    return tuple((float(at), float(mean)) for at, mean in rows)
