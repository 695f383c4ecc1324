"""Metrics for pictures and exports: only some names, and only as many points as can be seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ARRAY, Text, bindparam, func, literal, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.reading.job_records import MetricRow
from app.db.reading.stretches import has_more_than, stretches_of, with_stretches
from app.db.tables import metric_points

POINTS_PER_BUCKET = 4  # first, last, lowest, highest

LONG_POINTS = 100_000  # in a longer series no stretch is looked at as a whole
_STRETCHES = 1000
_LOOKED_AT = 50  # points of each name in each of these

_ALL = """
    SELECT m.step, v.key AS name, v.value::float8 AS value
    FROM metric_points AS m CROSS JOIN LATERAL jsonb_each_text(m.values) AS v
    WHERE m.job_id = :job_id AND m.step > CAST(:after AS bigint) AND (:names IS NULL OR v.key = ANY(:names))
"""
# By the primary key, so many rows and no more. Those without the name cost little to pass: of a rare one all are seen.
_SOME = """
    SELECT seen.step, told.name, seen.value
    FROM unnest(:names) AS told (name) CROSS JOIN unnest(:froms, :tos) AS stretch (from_step, to_step)
    CROSS JOIN LATERAL (
        SELECT m.step, (m.values ->> told.name)::float8 AS value FROM metric_points AS m
        WHERE m.job_id = :job_id AND m.step >= stretch.from_step AND m.step < stretch.to_step AND m.values ? told.name
        ORDER BY m.step LIMIT :looked_at
    ) AS seen
    UNION
    SELECT newest.step, told.name, newest.value
    FROM unnest(:names) AS told (name) CROSS JOIN LATERAL (
        SELECT m.step, (m.values ->> told.name)::float8 AS value FROM metric_points AS m
        WHERE m.job_id = :job_id AND m.step > CAST(:after AS bigint) AND m.values ? told.name
        ORDER BY m.step DESC LIMIT 1
    ) AS newest
"""
# A name with few enough points keeps them all (each is its own bucket). The steps of the others are cut into buckets
# of equal width. An array of (value, step) finds extremes and where they are in one pass, without sorting.
_KEPT = """
    WITH series AS ({}), spans AS (
        SELECT name, count(*) AS points, min(step) AS low, max(step) AS high FROM series GROUP BY name
    ), buckets AS (
        SELECT name, min(step) AS first, max(step) AS last,
               min(ARRAY[value, step]) AS lowest, max(ARRAY[value, -step]) AS highest
        FROM series JOIN spans USING (name)
        GROUP BY name, CASE WHEN points <= CAST(:most AS bigint) THEN step::numeric
                       ELSE floor((step - low)::numeric * CAST(:buckets AS bigint) / (high - low + 1)) END
    ), kept AS (
        SELECT DISTINCT name, unnest(ARRAY[first, last, lowest[2]::bigint, -highest[2]::bigint]) AS step FROM buckets
    )
    SELECT m.step, m.at_ms, jsonb_object_agg(kept.name, m.values -> kept.name) AS values
    FROM kept CROSS JOIN LATERAL (
        SELECT * FROM metric_points WHERE job_id = :job_id AND step = kept.step LIMIT 1
    ) AS m
    GROUP BY m.step, m.at_ms ORDER BY m.step
"""
_NAMES = bindparam("names", type_=ARRAY(Text))
_THINNED = text(_KEPT.format(_ALL)).bindparams(_NAMES)
_THINNED_LONG = with_stretches(text(_KEPT.format(_SOME)).bindparams(_NAMES))


async def thinned_metrics(
    connection: AsyncConnection, job_id: str, *, names: Sequence[str] | None, most: int, after: int | None = None
) -> list[MetricRow]:
    """At most `most` (4 or more) points of each name, by step: real ones, the first, the last and the extremes
    among them, and those of every stretch too. A row holds only the names whose point it is.

    Of more than `LONG_POINTS` points a bounded number is looked at, evenly spread: the extremes are those of these.
    """
    beyond = -1 if after is None else after
    told: dict[str, Any] = {
        "job_id": job_id,
        "names": None if names is None else list(names),
        "most": most,
        "buckets": most // POINTS_PER_BUCKET,
        "after": beyond,
    }
    if not await has_more_than(connection, job_id, beyond, LONG_POINTS):
        return [MetricRow(*row) for row in await connection.execute(_THINNED, told)]
    stretches = await stretches_of(connection, job_id, beyond, _STRETCHES)
    told |= {"froms": stretches.froms, "tos": stretches.tos, "looked_at": _LOOKED_AT}
    told["names"] = told["names"] or await metric_names(connection, job_id)
    return [MetricRow(*row) for row in await connection.execute(_THINNED_LONG, told)]


async def named_metrics_after(
    connection: AsyncConnection, job_id: str, after: int | None, *, names: Sequence[str], limit: int
) -> list[MetricRow]:
    """Points with a step above `after` that have one of these names, in order, with these names alone."""
    columns = metric_points.c
    statement = (
        select(columns.step, columns.at_ms, columns["values"])
        .where(columns.job_id == job_id, columns["values"].has_any(literal(list(names), ARRAY(Text))))
        .order_by(columns.step)
        .limit(limit)
    )
    if after is not None:
        statement = statement.where(columns.step > after)
    rows = await connection.execute(statement)
    return [
        MetricRow(row["step"], row["at_ms"], {name: row["values"][name] for name in names if name in row["values"]})
        for row in rows.mappings()
    ]


async def metric_names(connection: AsyncConnection, job_id: str) -> list[str]:
    """Every name that the job has reported, in order."""
    keys = select(func.jsonb_object_keys(metric_points.c["values"])).where(metric_points.c.job_id == job_id)
    return sorted((await connection.execute(keys.distinct())).scalars())
