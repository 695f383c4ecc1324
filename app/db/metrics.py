"""Metric points of jobs: one per step, the newest epoch's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import exists, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db import notify
from app.db.tables import job_events, metric_points

NOT_FINITE = "metric_not_finite"
LARGEST_VALUE = 1e100  # the database squares values where it averages them


@dataclass(frozen=True, slots=True)
class PointEntry:
    step: int
    at_ms: int
    values: Mapping[str, float]


async def put_points(connection: AsyncConnection, job_id: str, epoch: int, points: Mapping[int, PointEntry]) -> None:
    """Write points by step in one statement; a step that is there is overwritten."""
    statement = insert(metric_points).values(
        [
            {"job_id": job_id, "step": step, "epoch": epoch, "at_ms": point.at_ms, "values": dict(point.values)}
            for step, point in sorted(points.items())
        ]
    )
    new = statement.excluded
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=[metric_points.c.job_id, metric_points.c.step],
            set_={"epoch": new.epoch, "at_ms": new.at_ms, "values": new["values"]},
            where=metric_points.c.epoch <= new.epoch,
        )
    )
    await notify.job(connection, job_id)


async def told_not_finite(connection: AsyncConnection, job_id: str, run_id: str) -> bool:
    """Whether this run's event log already says that a metric stopped being a number."""
    found = exists().where(
        job_events.c.job_id == job_id,
        job_events.c.kind == NOT_FINITE,
        job_events.c.data["run_id"].astext == run_id,
    )
    return bool((await connection.execute(select(found))).scalar_one())
