"""The newest of what a job has told, going back in time."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.reading.job_records import EventRow, MetricRow
from app.db.tables import job_events, metric_points


async def events_below(connection: AsyncConnection, job_id: str, below: int | None, *, limit: int) -> list[EventRow]:
    """Newest first, of those with a position under `below`."""
    columns = job_events.c
    statement = select(columns.position, columns.at_ms, columns.kind, columns.message, columns.data)
    statement = statement.where(columns.job_id == job_id)
    if below is not None:
        statement = statement.where(columns.position < below)
    rows = await connection.execute(statement.order_by(columns.position.desc()).limit(limit))
    return [EventRow(*row) for row in rows]


async def metrics_below(connection: AsyncConnection, job_id: str, below: int | None, *, limit: int) -> list[MetricRow]:
    """Newest first, of those with a step under `below`."""
    columns = metric_points.c
    statement = select(columns.step, columns.at_ms, columns["values"]).where(columns.job_id == job_id)
    if below is not None:
        statement = statement.where(columns.step < below)
    rows = await connection.execute(statement.order_by(columns.step.desc()).limit(limit))
    return [MetricRow(*row) for row in rows]


async def newest_value(connection: AsyncConnection, job_id: str, name: str) -> float | None:
    """What the newest point says of this metric."""
    found = await metrics_below(connection, job_id, None, limit=1)
    value = found[0].values.get(name) if found else None
    return float(value) if isinstance(value, (int, float)) else None
