"""Metric points of jobs: one per step, the newest epoch's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import ARRAY, BigInteger, Integer, Text, bindparam, exists, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db import notify
from app.db.tables import job_events

NOT_FINITE = "metric_not_finite"
LARGEST_VALUE = 1e100  # the database squares values where it averages them


@dataclass(frozen=True, slots=True)
class PointEntry:
    step: int
    at_ms: int
    values: Mapping[str, float]


# All rows as three arrays: one statement, parsed once, whatever their number.
_PUT = text("""
    INSERT INTO metric_points AS kept (job_id, step, epoch, at_ms, values)
    SELECT :job_id, told.step, :epoch, told.at_ms, told.values::jsonb
    FROM unnest(:steps, :ats_ms, :texts) AS told (step, at_ms, values)
    ON CONFLICT (job_id, step) DO UPDATE
    SET epoch = excluded.epoch, at_ms = excluded.at_ms, values = excluded.values
    WHERE kept.epoch <= excluded.epoch
""").bindparams(
    bindparam("job_id", type_=Text),
    bindparam("epoch", type_=Integer),
    bindparam("steps", type_=ARRAY(BigInteger)),
    bindparam("ats_ms", type_=ARRAY(BigInteger)),
    bindparam("texts", type_=ARRAY(Text)),
)


async def add_points(connection: AsyncConnection, job_id: str, epoch: int, points: Mapping[int, PointEntry]) -> None:
    """Write points by step in one statement; a step that is there is overwritten."""
    ordered = [points[step] for step in sorted(points)]
    told = {
        "job_id": job_id,
        "epoch": epoch,
        "steps": [point.step for point in ordered],
        "ats_ms": [point.at_ms for point in ordered],
        "texts": [json.dumps(dict(point.values), allow_nan=False) for point in ordered],
    }
    await connection.execute(_PUT, told)
    await notify.job(connection, job_id)


async def told_not_finite(connection: AsyncConnection, job_id: str, run_id: str) -> bool:
    """Whether this run's event log already says that a metric stopped being a number."""
    found = exists().where(
        job_events.c.job_id == job_id,
        job_events.c.kind == NOT_FINITE,
        job_events.c.data["run_id"].astext == run_id,
    )
    return bool((await connection.execute(select(found))).scalar_one())
