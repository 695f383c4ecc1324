"""The losses of many jobs, each as a line that fits into a cell."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from sqlalchemy import ARRAY, BigInteger, Numeric, Text, bindparam, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.runs.metrics import LARGEST_VALUE

MOST_POINTS = 24
_BEYOND_STEPS = 2**53  # no script counts so far, and times two dozen it is still a number of the database
_LOOKED_AT = 20  # rows of a stretch, until one has a loss: a script may report it with each tenth point only

# The steps of a job are cut into stretches of equal width, and the first loss of each is taken: real points, the first
# and the last among them. So a job costs two dozen short looks into the primary key, however long its series is.
_SPARKS = text("""
    SELECT told.job_id, array_agg(seen.value ORDER BY seen.step) AS losses
    FROM unnest(:job_ids) AS told (job_id)
    CROSS JOIN LATERAL (
        SELECT
            (SELECT m.step FROM metric_points m WHERE m.job_id = told.job_id AND m.step >= 0 AND m.step < :beyond
                ORDER BY m.step LIMIT 1) AS low,
            (SELECT m.step FROM metric_points m WHERE m.job_id = told.job_id AND m.step >= 0 AND m.step < :beyond
                ORDER BY m.step DESC LIMIT 1) AS high
    ) AS ends
    CROSS JOIN generate_series(0, CAST(:last AS bigint)) AS n
    CROSS JOIN LATERAL (
        SELECT low + (high - low) * n / CAST(:last AS bigint) AS from_step,
            low + (high - low) * (n + 1) / CAST(:last AS bigint) + (n = CAST(:last AS bigint))::int AS to_step
    ) AS stretch
    CROSS JOIN LATERAL (
        SELECT of_stretch.step, of_stretch.loss::float8 AS value
        FROM (
            SELECT m.step, CASE WHEN jsonb_typeof(m.values -> 'loss') = 'number'  -- whatever wrote the row
                THEN CASE WHEN abs((m.values ->> 'loss')::numeric) <= :largest THEN m.values ->> 'loss' END
            END AS loss FROM metric_points m
            WHERE m.job_id = told.job_id AND m.step >= from_step AND m.step < to_step
            ORDER BY m.step LIMIT :looked_at
        ) AS of_stretch
        WHERE of_stretch.loss IS NOT NULL
        ORDER BY of_stretch.step LIMIT 1
    ) AS seen
    WHERE ends.low IS NOT NULL
    GROUP BY told.job_id
""").bindparams(
    bindparam("job_ids", type_=ARRAY(Text)), bindparam("beyond", type_=BigInteger), bindparam("largest", type_=Numeric)
)


async def sparks_of(connection: AsyncConnection, job_ids: Sequence[str]) -> dict[str, list[float]]:
    """By job, at most `MOST_POINTS` of its losses, oldest first; jobs without one are left out."""
    bounds = {"beyond": _BEYOND_STEPS, "largest": Decimal(LARGEST_VALUE)}
    told = {"job_ids": list(job_ids), "last": MOST_POINTS - 1, "looked_at": _LOOKED_AT, **bounds}
    return {row.job_id: row.losses for row in await connection.execute(_SPARKS, told)}
