"""Jobs that ask for a range and go on on machines of other sizes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Integer, and_, cast, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.board import COMING_NODE_STATES
from app.core.elastic.range_moves import LARGER, LOOK_MS, PATIENCE_MS, SMALLER
from app.core.model.job import PLACEABLE_JOB_STATES, JobState
from app.core.model.node import NodeState
from app.core.resizing import LEAST
from app.db.arrays import is_one_of
from app.db.tables import job_events, jobs, nodes, run_jobs

_GREW, _BEGAN = "grows_for_deadline", "begins_larger"
_CHANGES = (_GREW, _BEGAN, SMALLER, LARGER)
_LATE_MS = 60_000  # a machine may be late by that, or by as much as it was to take


@dataclass(frozen=True, slots=True)
class GrownJob:
    """It waits for `gpus`, and needs `least`."""

    job_id: str
    gpus: int
    least: int


async def last_changes(connection: AsyncConnection, job_ids: Collection[str]) -> dict[str, int]:
    """When these jobs were last to go on on a machine of another size, of those that may: whose code saves when it is
    asked to, and that are not to stay where they are. 0: never."""
    of = job_events.c
    latest = select(func.max(of.at_ms)).where(of.job_id == jobs.c.id, of.kind.in_(_CHANGES))
    changed = latest.correlate(jobs).scalar_subquery()
    rows = await connection.execute(
        select(jobs.c.id, func.coalesce(changed, 0).label("changed_ms")).where(
            is_one_of(jobs.c.id, job_ids),
            jobs.c.saves_ms.is_not(None),
            jobs.c.refused_ms.is_(None),
            ~func.coalesce(jobs.c.affinity["locked"].as_boolean(), False),
        )
    )
    return {row.id: row.changed_ms for row in rows}


async def jobs_waiting_in_vain(connection: AsyncConnection, job_ids: Collection[str], *, now_ms: int) -> list[GrownJob]:
    """Of these, those that have no place, were to have more GPUs too long ago, and for which no machine with so many is
    about to come."""
    least, gpus = _number(LEAST), _number("gpus_min")
    of = job_events.c
    grew = select(func.max(of.at_ms)).where(of.job_id == jobs.c.id, of.kind.in_((_GREW, _BEGAN))).scalar_subquery()
    grew_ms = func.coalesce(grew, 0)
    rows = await connection.execute(
        select(jobs.c.id, gpus.label("gpus"), least.label("least"))
        .where(
            is_one_of(jobs.c.id, job_ids),
            is_one_of(jobs.c.state, PLACEABLE_JOB_STATES),
            jobs.c.elastic,
            func.jsonb_typeof(jobs.c.resources[LEAST]) == "number",
            func.jsonb_typeof(jobs.c.resources["gpus_min"]) == "number",
            gpus > least,
            ~grew_ms.between(now_ms - PATIENCE_MS + 1, now_ms),
            ~_is_about_to_come(gpus, grew_ms, now_ms),
        )
        .order_by(jobs.c.id)
    )
    return [GrownJob(row.id, row.gpus, row.least) for row in rows]


def _is_about_to_come(gpus: ColumnElement[int], grew_ms: ColumnElement[int], now_ms: int) -> ColumnElement[bool]:
    """Whether a machine with so many GPUs was rented for the job in time, and is on its way as expected, or has just
    come. In time, so that nobody waits without end where one after the other fails."""
    of = nodes.c
    late_ms = func.greatest(of.expected_ready_ms - of.requested_ms, _LATE_MS)
    return exists().where(
        of.rented_for_job_id == jobs.c.id,
        of.gpu_count >= gpus,
        of.requested_ms < grew_ms + PATIENCE_MS,
        or_(
            and_(is_one_of(of.state, COMING_NODE_STATES), of.expected_ready_ms + late_ms > now_ms),
            and_(of.state == NodeState.READY, of.ready_ms > now_ms - LOOK_MS),
        ),
    )


async def grown_resources(connection: AsyncConnection, job_id: str, gpus: int | None) -> dict[str, Any] | None:
    """What a locked job that runs asks for once it is to go on with so many GPUs; None: what one that waits does with
    its least. None where that is no change: it asks for no range, or for one without this number, runs where it was to
    wait, or has the number."""
    found = await connection.execute(
        select(jobs.c.resources, jobs.c.state, jobs.c.pause_reason).where(jobs.c.id == job_id)
    )
    row = found.one_or_none()
    if row is None or not isinstance(row.resources, dict) or row.pause_reason is not None:
        return None
    states = {JobState.RUNNING.value} if gpus is not None else {state.value for state in PLACEABLE_JOB_STATES}
    least, most = row.resources.get(LEAST), row.resources.get("gpus_max")
    to = least if gpus is None else gpus
    if row.state not in states or type(least) is not int or type(most) is not int or type(to) is not int:
        return None
    if not least <= to <= most or row.resources.get("gpus_min") == to:
        return None
    return {**row.resources, "gpus_min": to}


async def larger_start(connection: AsyncConnection, job_id: str, gpus: int) -> dict[str, Any] | None:
    """What a locked job that has never begun asks for once it is to begin with so many GPUs. None where it has begun,
    pauses, asks for no range with this number, or has had another number than its least: its owner's, or once
    before."""
    of = job_events.c
    before = exists().where(of.job_id == jobs.c.id, of.kind == _BEGAN)
    has_begun = exists().where(run_jobs.c.job_id == jobs.c.id)
    found = await connection.execute(
        select(jobs.c.resources).where(
            jobs.c.id == job_id, jobs.c.state == JobState.QUEUED, jobs.c.pause_reason.is_(None), ~before, ~has_begun
        )
    )
    row = found.one_or_none()
    if row is None or not isinstance(row.resources, dict):
        return None
    least, most = row.resources.get(LEAST), row.resources.get("gpus_max")
    if type(least) is not int or type(most) is not int or row.resources.get("gpus_min") != least:
        return None
    return {**row.resources, "gpus_min": gpus} if least < gpus <= most else None


def _number(name: str) -> Any:
    return cast(jobs.c.resources[name].astext, Integer)
