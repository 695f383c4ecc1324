"""On how many machines a job runs, and is to run: rows that are read under the locks of its job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import codec
from app.core.foreign import read_as
from app.core.model.job import JobState, PauseReason, Resources
from app.core.model.money import Money
from app.core.model.run import RunState
from app.db.tables import allocations, app_versions, jobs, nodes, runs


@dataclass(frozen=True, slots=True)
class SpreadJob:
    """A locked job: what it asks for, and what it runs. `asks`: the same resources as its row has them."""

    job_id: str
    state: JobState
    pause_reason: PauseReason | None
    resources: Resources
    asks: Mapping[str, Any]
    max_hourly: Money | None
    template: Mapping[str, Any]
    parameters: Any
    entrypoint: str


@dataclass(frozen=True, slots=True)
class SpreadRun:
    """The locked run that leads, with all its machines. `stops_together`: its code says that all processes leave after
    the same step."""

    run_id: str
    state: RunState
    stops_together: bool
    machines: int
    hourly: Money


async def spread_job(connection: AsyncConnection, job_id: str, project_id: str) -> SpreadJob | None:
    """None when there is no such job of this project."""
    of = jobs.c
    found = await connection.execute(
        select(of.state, of.pause_reason, of.resources, of.max_hourly_micros, of.template, of.parameters)
        .add_columns(app_versions.c.entrypoint)
        .join(app_versions, app_versions.c.id == of.app_version_id)
        .where(of.id == job_id, of.project_id == project_id)
    )
    row = found.one_or_none()
    if row is None:
        return None
    return SpreadJob(
        job_id,
        read_as(JobState, row.state),
        None if row.pause_reason is None else read_as(PauseReason, row.pause_reason),
        codec.decode_row(Resources, row.resources),
        row.resources,
        None if row.max_hourly_micros is None else Money(row.max_hourly_micros),
        row.template,
        row.parameters,
        row.entrypoint or "",
    )


async def spread_run(connection: AsyncConnection, run_id: str) -> SpreadRun:
    row = (await connection.execute(select(runs.c.state, runs.c.stops_together).where(runs.c.id == run_id))).one()
    of = allocations.c
    held = await connection.execute(
        select(func.count(), func.coalesce(func.sum(nodes.c.price_micros_per_hour), 0).label("hourly"))
        .select_from(allocations)
        .join(runs, runs.c.id == of.run_id)
        .join(nodes, nodes.c.id == of.node_id)
        .where(or_(runs.c.id == run_id, runs.c.member_of == run_id), of.to_ms.is_(None))
    )
    machines, hourly = held.one()
    return SpreadRun(run_id, read_as(RunState, row.state), bool(row.stops_together), machines, Money(int(hourly)))
