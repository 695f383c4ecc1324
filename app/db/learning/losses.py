"""A metric of a job as a curve is fitted to it: in order of steps, long series averaged in stretches."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.reading.stretches import stretches_of, with_stretches
from app.db.runs.metrics import LARGEST_VALUE

MOST_POINTS = 120
_LOOKED_AT = 500  # points of a stretch

_AVERAGED = with_stretches(
    text("""
    SELECT mean.step, mean.value
    FROM unnest(:froms, :tos) WITH ORDINALITY AS stretch (from_step, to_step, number) CROSS JOIN LATERAL (
        SELECT avg(seen.step)::float8 AS step, avg(seen.value) AS value FROM (
            SELECT m.step, (m.values ->> :name)::float8 AS value FROM metric_points AS m
            WHERE m.job_id = :job_id AND m.step >= stretch.from_step AND m.step < stretch.to_step AND m.values ? :name
                AND abs((m.values ->> :name)::float8) <= :largest  -- older rows may hold larger ones
            ORDER BY m.step LIMIT :looked_at
        ) AS seen
    ) AS mean
    WHERE mean.step IS NOT NULL ORDER BY stretch.number
""")
)


async def averaged_metric(connection: AsyncConnection, job_id: str, name: str) -> tuple[tuple[float, float], ...]:
    """(step, value), each the mean of the first points of a stretch of steps; at most `MOST_POINTS` of them."""
    stretches = await stretches_of(connection, job_id, -1, MOST_POINTS)
    limits = {"looked_at": _LOOKED_AT, "largest": LARGEST_VALUE}
    told = {"job_id": job_id, "name": name, **limits, "froms": stretches.froms, "tos": stretches.tos}
    rows = await connection.execute(_AVERAGED, told)
    return tuple((float(step), float(value)) for step, value in rows)
