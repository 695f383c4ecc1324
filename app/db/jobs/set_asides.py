"""What is kept for a guaranteed job that spot jobs leave for, and how often a spot job had to leave."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import exists, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.board import LASTING_NODE_STATES
from app.core.foreign import read_as
from app.core.model.job import PLACEABLE_JOB_STATES, JobState, PauseReason, PriorityClass
from app.core.model.run import RunState
from app.core.set_aside import HostNode, SetAside
from app.db import notify
from app.db.arrays import is_one_of
from app.db.tables import allocations, jobs, nodes, runs

START_MS = 60_000  # a job begins on what was freed for it within so long
_PATIENCE_MS = 900_000
_LONGEST_MS = 86_400_000
_MOST = 10_000  # of one decision
_BETWEEN = "\n"  # places of a job on several machines: no place has it in its name


@dataclass(frozen=True, slots=True)
class ClassedJob:
    """A locked job as evictions see it."""

    job_id: str
    project_id: str
    state: JobState
    priority_class: PriorityClass
    pause_reason: PauseReason | None
    set_aside_until_ms: int | None


async def set_asides(connection: AsyncConnection, *, now_ms: int) -> list[SetAside]:
    """What is kept now, for jobs that have no place: until its time is over, while somebody is still leaving, and for a
    while after that. Not for longer than _PATIENCE_MS beyond its time: the job may be begun elsewhere then. Rows that
    make no sense are left out."""
    of = jobs.c
    left = or_(runs.c.state != RunState.ENDED, runs.c.ended_ms > now_ms - START_MS)
    leaving = exists().where(runs.c.evicted_for_job_id == of.id, left)
    rows = await connection.execute(
        select(of.id, of.set_aside_place, of.set_aside_gpus, of.project_id)
        .where(
            of.set_aside_until_ms.between(now_ms - _PATIENCE_MS, now_ms + _LONGEST_MS),
            is_one_of(of.state, PLACEABLE_JOB_STATES),
            or_(of.set_aside_until_ms > now_ms, leaving),
        )
        .order_by(of.id)
        .limit(_MOST)
    )
    return [
        SetAside(row.id, place, row.set_aside_gpus, row.project_id)
        for row in rows
        if row.set_aside_place and row.set_aside_gpus is not None and row.set_aside_gpus > 0
        for place in row.set_aside_place.split(_BETWEEN)
    ]


async def nodes_on(connection: AsyncConnection, places: Collection[str]) -> list[HostNode]:
    """The nodes that hosts of pools have, by what their offers name as the host."""
    of = nodes.c
    evicted_for = (
        select(runs.c.evicted_for_job_id)
        .join(allocations, allocations.c.run_id == runs.c.id)
        .where(allocations.c.node_id == of.id, runs.c.evicted_for_job_id.is_not(None))
        .order_by(runs.c.created_ms.desc())
        .limit(1)
        .scalar_subquery()
    )
    rows = await connection.execute(
        select(of.id, of.host, of.rented_for_job_id, evicted_for.label("evicted_for")).where(
            is_one_of(of.host, sorted(places)), of.state.in_(LASTING_NODE_STATES)
        )
    )
    return [HostNode(row.id, row.host, row.rented_for_job_id, row.evicted_for) for row in rows]


async def classed_jobs(connection: AsyncConnection, job_ids: Collection[str]) -> dict[str, ClassedJob]:
    """Of jobs that are locked."""
    of = jobs.c
    rows = await connection.execute(
        select(of.id, of.project_id, of.state, of.priority_class, of.pause_reason, of.set_aside_until_ms).where(
            is_one_of(of.id, sorted(job_ids))
        )
    )
    return {
        row.id: ClassedJob(
            row.id,
            row.project_id,
            read_as(JobState, row.state),
            read_as(PriorityClass, row.priority_class),
            None if row.pause_reason is None else read_as(PauseReason, row.pause_reason),
            row.set_aside_until_ms,
        )
        for row in rows
    }


async def set_aside(connection: AsyncConnection, asides: Sequence[SetAside], *, until_ms: int) -> None:
    """The places of this locked job are kept for it until then, and as long as somebody is still leaving for it. They
    are of one size; for a release that knows one place alone, several are none that it has."""
    values = {
        "set_aside_place": _BETWEEN.join(one.place for one in asides),
        "set_aside_gpus": max(one.gpus for one in asides),
        "set_aside_until_ms": until_ms,
    }
    await _change(connection, asides[0].job_id, values)


async def count_eviction(connection: AsyncConnection, job_id: str, *, saved: bool) -> None:
    """The locked spot job had to leave. `saved`: with all that it had done."""
    of = jobs.c
    await _change(connection, job_id, {"evictions": of.evictions + 1, "eviction_saves": of.eviction_saves + int(saved)})


async def _change(connection: AsyncConnection, job_id: str, values: dict[str, object]) -> None:
    await connection.execute(update(jobs).where(jobs.c.id == job_id).values(**values))
    await notify.control(connection)
