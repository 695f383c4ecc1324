"""Have a job stand by in hours that come again: agree on them, begin each window in its time, and end them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.core.calendar import written
from app.core.model.job import TERMINAL_JOB_STATES, PriorityClass
from app.core.standby_windows import DAYS, SHORTEST_MS, WeeklyHours, window_after, window_to_begin, written_minute
from app.db.connection import Connection
from app.db.jobs.set_asides import classed_jobs
from app.db.jobs.steering import lock_standing
from app.db.lock_order import lock_scope
from app.db.standby.standbys import open_standby_of
from app.db.standby.windows import WindowRow, add_window, change_window, find_window, windows_of
from app.db.transitions import Event, add_job_event
from app.errors import Conflict, InvalidInput, NotFound
from app.ports.clock import IdSource
from app.services.standby.begin_standby import NOT_LENDABLE, begin_standby
from app.services.standby.zone_clock import ZoneClock

WINDOW_WAITS, WINDOW_REPEATS = "standby_window_waits", "standby_window"
MOST_OF_A_JOB = 20
AGAIN_MS = 60_000  # until it is tried again to begin a window
ENDED_BY_HAND = "it was ended"


async def repeat_standby(
    connection: Connection,
    ids: IdSource,
    project_id: str,
    job_id: str,
    *,
    days: Sequence[str],
    from_minute: int,
    until_minute: int,
    zone: str,
    lose_steps: bool = False,
    now_ms: int,
) -> WindowRow:
    """The job stands by in these hours, again and again while it runs; also in those that are open now. The same hours
    again are the same window.

    Raises NotFound; InvalidInput naming the field; Conflict for a job that is over, and as `not_lendable` for a spot
    job. Whether its GPUs can be lent is looked at when a window begins."""
    await lock_scope(connection, [job_id])
    job = await lock_standing(connection, job_id, project_id=project_id)
    if job is None:
        raise NotFound(f"there is no job {job_id!r} in this project")
    if job.state in TERMINAL_JOB_STATES:
        raise Conflict(f"{job_id} has {job.state}: it has no GPUs to lend")
    if (await classed_jobs(connection, [job_id]))[job_id].priority_class is PriorityClass.SPOT:
        raise Conflict(
            f"{job_id} cannot stand by: it is a spot job, which leaves anyway when a guaranteed job needs its GPUs",
            code=NOT_LENDABLE,
        )
    hours = _hours(days, from_minute, until_minute, zone)
    names = tuple(day for day in DAYS if day in hours.days)
    before = [row for row in await windows_of(connection, job_id) if row.ended_ms is None]
    same = (names, from_minute, until_minute, zone, lose_steps)
    for row in before:
        if (row.days, row.from_minute, row.until_minute, row.zone, row.lose_steps) == same:
            return row
    if len(before) >= MOST_OF_A_JOB:
        raise Conflict(f"{job_id} has {MOST_OF_A_JOB} windows, as many as there can be: end one")
    begins_ms, ends_ms = window_to_begin(hours, now_ms)
    made = WindowRow(
        *(ids.new("stbw"), project_id, job_id, *same),
        created_ms=now_ms,
        next_from_ms=begins_ms,
        next_until_ms=ends_ms,
        try_ms=begins_ms,
    )
    await add_window(connection, made)
    await add_job_event(connection, job_id, _told(made), now_ms=now_ms)
    return made


async def end_window(connection: Connection, project_id: str, window_id: str, *, now_ms: int) -> WindowRow:
    """It does not come again; a standby that it has begun goes on to its end. One that has ended stays as it is. Raises
    NotFound."""
    row = await find_window(connection, window_id)
    if row is None or row.project_id != project_id:
        raise NotFound(f"there is no window {window_id!r} in this project (allpass standby JOB lists them)")
    await lock_standing(connection, row.job_id, project_id=project_id)
    await change_window(connection, window_id, ended_ms=now_ms, ended_why=ENDED_BY_HAND)
    found = await find_window(connection, window_id)
    assert found is not None  # nothing deletes it
    return found


async def begin_window(connection: Connection, ids: IdSource, due: WindowRow, *, now_ms: int) -> bool:
    """Begin the window that is due; whether it has begun. One that cannot be begun is tried again while it is open; one
    that is over by now, for the server was down, is left out. A job that stands by already is left alone."""
    await lock_scope(connection, [due.job_id])
    job = await lock_standing(connection, due.job_id, project_id=due.project_id)
    row = await find_window(connection, due.window_id)
    if row is None or row.ended_ms is not None or row.try_ms > now_ms:
        return False
    if job is None or job.state in TERMINAL_JOB_STATES:
        await change_window(connection, row.window_id, ended_ms=now_ms, ended_why="its job is over")
        return False
    hours = hours_of(row)
    if row.next_until_ms - now_ms < SHORTEST_MS:
        begins_ms, ends_ms = window_to_begin(hours, now_ms)
        row = replace(row, next_from_ms=begins_ms, next_until_ms=ends_ms)
        await _set_next(connection, row, begins_ms, ends_ms)
        if begins_ms > now_ms:
            return False
    if await open_standby_of(connection, row.job_id) is None:
        try:
            await begin_standby(
                connection,
                ids,
                row.project_id,
                row.job_id,
                until_ms=row.next_until_ms,
                lose_steps=row.lose_steps,
                now_ms=now_ms,
            )
        except (Conflict, InvalidInput) as error:  # raised before anything is written
            await _wait(connection, row, error.message, now_ms=now_ms)
            return False
    await _set_next(connection, row, *window_after(hours, row.next_until_ms))
    return True


def hours_of(row: WindowRow) -> WeeklyHours:
    """Raises InvalidInput where this host does not know the zone any more."""
    return _hours(row.days, row.from_minute, row.until_minute, row.zone)


async def _set_next(connection: Connection, row: WindowRow, from_ms: int, until_ms: int) -> None:
    await change_window(connection, row.window_id, next_from_ms=from_ms, next_until_ms=until_ms, try_ms=from_ms)


async def _wait(connection: Connection, row: WindowRow, why: str, *, now_ms: int) -> None:
    """Its owner is told once for each window."""
    columns = {"try_ms": now_ms + AGAIN_MS}
    if row.told_ms != row.next_from_ms:
        columns["told_ms"] = row.next_from_ms
        told = f"its window until {written(row.next_until_ms)} is not begun yet: {why}"
        data = {"window_id": row.window_id, "until_ms": row.next_until_ms}
        await add_job_event(connection, row.job_id, Event(WINDOW_WAITS, told, data), now_ms=now_ms)
    await change_window(connection, row.window_id, **columns)


def _hours(days: Sequence[str], from_minute: int, until_minute: int, zone: str) -> WeeklyHours:
    if len(set(days)) != len(days):
        raise InvalidInput("days: name each day once", param="days")
    if from_minute == until_minute:
        raise InvalidInput(
            f"ends: {written_minute(until_minute)} is when it begins: a job that always stands by is better paused",
            param="ends",
        )
    return WeeklyHours(frozenset(days), from_minute, until_minute, ZoneClock(zone))


def _told(row: WindowRow) -> Event:
    when = f"{written_minute(row.from_minute)} to {written_minute(row.until_minute)} of {row.zone}"
    told = f"stands by on {', '.join(row.days)} from {when}, next from {written(row.next_from_ms)}"
    return Event(WINDOW_REPEATS, told, {"window_id": row.window_id, "next_from_ms": row.next_from_ms})
