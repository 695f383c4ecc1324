"""The newest events of a job, for those who follow it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import and_, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.foreign import read_as
from app.core.model.job import JobState
from app.db.reading.job_records import EventRow
from app.db.tables import job_events, jobs


@dataclass(frozen=True, slots=True)
class EventTail:
    """`events` end with position `last`; there are older ones that were not read when they begin above `after + 1`."""

    state: JobState
    last: int
    events: tuple[EventRow, ...]


async def read_tail(connection: AsyncConnection, job_id: str, after: int, *, newest: int) -> EventTail | None:
    """Events above `after`, at most the `newest` ones, with the state that they led to; None without such a job.

    One statement, so state and events are of one moment: after the last event of a job that is over comes no other.
    """
    columns = job_events.c
    unread = and_(columns.job_id == jobs.c.id, columns.position > func.greatest(after, jobs.c.event_position - newest))
    statement = (
        select(
            jobs.c.state,
            jobs.c.event_position,
            columns.position,
            columns.at_ms,
            columns.kind,
            columns.message,
            columns.data,
        )
        .select_from(jobs.outerjoin(job_events, unread))
        .where(jobs.c.id == job_id)
        .order_by(columns.position)
    )
    rows = (await connection.execute(statement)).all()
    if not rows:
        return None
    events = tuple(
        EventRow(row.position, row.at_ms, row.kind, row.message, row.data) for row in rows if row.position is not None
    )
    return EventTail(read_as(JobState, rows[0].state), rows[0].event_position, events)


async def has_event(connection: AsyncConnection, job_id: str, kind: str) -> bool:
    """Whether anything of this kind has happened to the job."""
    found = select(job_events.c.position).where(job_events.c.job_id == job_id, job_events.c.kind == kind).limit(1)
    return (await connection.execute(found)).first() is not None
