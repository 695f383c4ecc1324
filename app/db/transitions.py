"""The one guarded door for every change of state. Each passage appends an event and wakes whoever follows.

Callers hold a transaction, and the locks that `app.db.lock_order` gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sqlalchemy import FromClause, Table, Text, Update, case, func, literal, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.lifecycle import job_sources, node_sources, run_sources
from app.core.model.job import JobState
from app.core.model.node import NodeState
from app.core.model.run import RunState
from app.db import notify
from app.db.arrays import as_rows
from app.db.foreign import may_become
from app.db.tables import job_events, jobs, node_events, nodes, run_jobs, runs
from app.errors import InvariantBroken


@dataclass(frozen=True, slots=True)
class Event:
    """What happened, in words, with facts for programs beside it."""

    kind: str
    message: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """An event of a job's log to be. `begins`: the epoch of the run that begins with it; None: no run does."""

    job_id: str
    event: Event
    begins: int | None = None


async def move_job(
    connection: AsyncConnection, job_id: str, to: JobState, event: Event, *, now_ms: int, **columns: Any
) -> bool:
    """Take a job to `to`; False, with nothing written, when its present state does not allow that."""
    return await _pass(connection, jobs, job_events, job_id, to, job_sources(to), event, now_ms, columns)


async def move_node(
    connection: AsyncConnection, node_id: str, to: NodeState, event: Event, *, now_ms: int, **columns: Any
) -> bool:
    """Take a node to `to`; False, with nothing written, when its present state does not allow that."""
    return await _pass(connection, nodes, node_events, node_id, to, node_sources(to), event, now_ms, columns)


async def move_run(
    connection: AsyncConnection, run_id: str, to: RunState, event: Event, *, now_ms: int, **columns: Any
) -> bool:
    """Take a run to `to`, and tell it in the event log of each of its jobs."""
    statement = (
        update(runs)
        .where(runs.c.id == run_id, may_become(runs.c.state, to, run_sources(to)))
        .values(state=to, row_version=runs.c.row_version + 1, **columns)
    )
    if (await connection.execute(statement)).rowcount == 0:
        return False
    job_ids = await connection.execute(
        select(run_jobs.c.job_id).where(run_jobs.c.run_id == run_id).order_by(run_jobs.c.job_id)
    )
    data = {"run_id": run_id, **event.data}
    for (job_id,) in job_ids.all():
        await add_job_event(connection, job_id, Event(event.kind, event.message, data), now_ms=now_ms)
    return True


async def move_member(connection: AsyncConnection, run_id: str, to: RunState, **columns: Any) -> bool:
    """Take a run to `to` that only follows another one of its job: what happens is told of that one, for all."""
    moved = await connection.execute(
        update(runs)
        .where(runs.c.id == run_id, may_become(runs.c.state, to, run_sources(to)))
        .values(state=to, row_version=runs.c.row_version + 1, **columns)
    )
    return moved.rowcount > 0


async def add_job_event(connection: AsyncConnection, job_id: str, event: Event, *, now_ms: int) -> int:
    """Append an event to a job's log without a change of state; returns its position."""
    return await _append(connection, jobs, job_events, job_id, event, now_ms)


async def add_node_event(connection: AsyncConnection, node_id: str, event: Event, *, now_ms: int) -> int:
    """Append an event to a node's log without a change of state; returns its position."""
    return await _append(connection, nodes, node_events, node_id, event, now_ms)


async def tell_jobs(connection: AsyncConnection, entries: Sequence[Entry], *, now_ms: int) -> None:
    """Append events to the logs of any number of jobs, of each in this order, and take the jobs whose runs begin to
    `starting`: what `add_job_event` and `move_job` do, in one statement for all. Raises InvariantBroken, for the caller
    to undo all of it, where there is no such job, or where its state does not allow that."""
    if not entries:
        return
    told = _as_told(entries)
    of_job = select(told.c.job_id, func.max(told.c.position).label("number"), func.max(told.c.epoch).label("epoch"))
    news = of_job.group_by(told.c.job_id).cte("news")
    begins = news.c.epoch.is_not(None)
    changed = (
        update(jobs)
        .where(
            jobs.c.id == news.c.job_id,
            or_(~begins, may_become(jobs.c.state, JobState.STARTING, job_sources(JobState.STARTING))),
        )
        .values(
            state=case((begins, literal(JobState.STARTING, Text)), else_=jobs.c.state),
            epoch=func.coalesce(news.c.epoch, jobs.c.epoch),
            wait_reason=case((~begins, jobs.c.wait_reason)),
            row_version=jobs.c.row_version + case((begins, 1), else_=0),
            event_position=jobs.c.event_position + news.c.number,
        )
        .returning(jobs.c.id, (jobs.c.event_position - news.c.number).label("before"))
        .cte("changed")
    )
    facts = (literal(now_ms, job_events.c.at_ms.type), told.c.kind, told.c.message, told.c.data)
    rows = select(told.c.job_id, changed.c.before + told.c.position, *facts).join(
        changed, changed.c.id == told.c.job_id
    )
    wakes = [func.pg_notify(notify.JOB, job_events.c.job_id)]
    if any(entry.begins is not None for entry in entries):
        wakes.append(func.pg_notify(notify.CONTROL, ""))
    columns = ["job_id", "position", "at_ms", "kind", "message", "data"]
    written = await connection.execute(
        job_events.insert().from_select(columns, rows).returning(job_events.c.position, *wakes)
    )
    if len(written.all()) != len(entries):
        raise InvariantBroken("of the jobs that were to be told or to start, some are gone or may not start")


def _as_told(entries: Sequence[Entry]) -> FromClause:
    """As rows; `position`: of each job's events, counted from 1."""
    counts = Counter[str]()
    rows = []
    for entry in entries:
        counts[entry.job_id] += 1
        event = entry.event
        rows.append((entry.job_id, counts[entry.job_id], event.kind, event.message, dict(event.data), entry.begins))
    of = job_events.c
    return as_rows("told", (of.job_id, of.position, of.kind, of.message, of.data, jobs.c.epoch), rows)


async def _pass(
    connection: AsyncConnection,
    table: Table,
    events: Table,
    row_id: str,
    to: StrEnum,
    sources: frozenset[Any],
    event: Event,
    now_ms: int,
    columns: Mapping[str, Any],
) -> bool:
    passage = (
        update(table)
        .where(table.c.id == row_id, may_become(table.c.state, to, sources))
        .values(state=to, row_version=table.c.row_version + 1, **columns)
    )
    return await _record(connection, table, events, passage, event, now_ms, moved=True) is not None


async def _append(
    connection: AsyncConnection, table: Table, events: Table, row_id: str, event: Event, now_ms: int
) -> int:
    kept = update(table).where(table.c.id == row_id)
    position = await _record(connection, table, events, kept, event, now_ms, moved=False)
    if position is None:
        raise InvariantBroken(f"{row_id}, to which {event.kind} happened, does not exist")
    return position


async def _record(
    connection: AsyncConnection,
    table: Table,
    events: Table,
    change: Update,
    event: Event,
    now_ms: int,
    *,
    moved: bool,
) -> int | None:
    """Change the row and append the event under the position it takes; None, with nothing written, when `change`
    finds no row.

    One statement with the wake-ups in it: every change of state comes by here, most of them while somebody waits.
    """
    taken = change.values(event_position=table.c.event_position + 1).returning(table.c.id, table.c.event_position)
    changed = taken.cte("changed")
    told = {"at_ms": now_ms, "kind": event.kind, "message": event.message, "data": dict(event.data)}
    facts = [literal(value, events.c[name].type) for name, value in told.items()]
    owner = events.primary_key.columns[0]
    wakes = [func.pg_notify(notify.CONTROL, "")] if moved else []
    if table is jobs or moved:  # an agent is only told of what changes what it should do
        wakes.append(func.pg_notify(notify.JOB if table is jobs else notify.NODE, owner))
    rows = await connection.execute(
        events.insert()
        .from_select([owner.name, "position", *told], select(changed.c.id, changed.c.event_position, *facts))
        .returning(events.c.position, *wakes)
    )
    row = rows.one_or_none()
    return None if row is None else int(row.position)


async def bump_desired(connection: AsyncConnection, node_id: str) -> None:
    """Say that what the node's agent should do has changed; its long poll returns at once."""
    await connection.execute(
        update(nodes).where(nodes.c.id == node_id).values(desired_version=nodes.c.desired_version + 1)
    )
    await notify.node(connection, node_id)
