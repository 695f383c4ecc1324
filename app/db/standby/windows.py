"""Rows of repeated windows: in which hours a job stands by, and which of them comes next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, Select, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db import notify
from app.db.tables import standby_windows

_MOST = 1_000  # of one decision
_MOST_SHOWN = 100


@dataclass(frozen=True, slots=True)
class WindowRow:
    """As it is written. `next_from_ms`: of the window that comes, or is open and not begun; `try_ms`: when it is tried
    to begin it; `told_ms`: of which window its owner was told that it cannot be."""

    window_id: str
    project_id: str
    job_id: str
    days: tuple[str, ...]
    from_minute: int
    until_minute: int
    zone: str
    lose_steps: bool
    created_ms: int
    next_from_ms: int
    next_until_ms: int
    try_ms: int
    told_ms: int | None = None
    ended_ms: int | None = None
    ended_why: str | None = None


async def add_window(connection: AsyncConnection, row: WindowRow) -> None:
    """Its job is locked."""
    await connection.execute(
        insert(standby_windows).values(
            id=row.window_id,
            project_id=row.project_id,
            job_id=row.job_id,
            days=",".join(row.days),
            from_minute=row.from_minute,
            until_minute=row.until_minute,
            zone=row.zone,
            lose_steps=row.lose_steps,
            created_ms=row.created_ms,
            next_from_ms=row.next_from_ms,
            next_until_ms=row.next_until_ms,
            try_ms=row.try_ms,
        )
    )
    await notify.control(connection)


async def find_window(connection: AsyncConnection, window_id: str) -> WindowRow | None:
    row = (await connection.execute(_rows().where(standby_windows.c.id == window_id))).one_or_none()
    return None if row is None else _window_row(row)


async def windows_of(connection: AsyncConnection, job_id: str) -> list[WindowRow]:
    """The newest of a job, newest first."""
    of = standby_windows.c
    rows = _rows().where(of.job_id == job_id).order_by(of.created_ms.desc(), of.id.desc()).limit(_MOST_SHOWN)
    return [_window_row(row) for row in await connection.execute(rows)]


async def due_windows(connection: AsyncConnection, *, now_ms: int) -> list[WindowRow]:
    """Those that are to be begun, by id."""
    of = standby_windows.c
    rows = _rows().where(of.ended_ms.is_(None), of.try_ms <= now_ms).order_by(of.try_ms, of.id).limit(_MOST)
    return [_window_row(row) for row in await connection.execute(rows)]


async def next_try_ms(connection: AsyncConnection, *, now_ms: int) -> int | None:
    """When the next one is to be begun."""
    of = standby_windows.c
    rows = select(func.min(of.try_ms)).where(of.ended_ms.is_(None), of.try_ms > now_ms)
    found: int | None = (await connection.execute(rows)).scalar_one_or_none()
    return found


async def change_window(connection: AsyncConnection, window_id: str, **columns: Any) -> None:
    """The job of it is locked."""
    of = standby_windows.c
    await connection.execute(update(standby_windows).where(of.id == window_id, of.ended_ms.is_(None)).values(**columns))


async def end_windows_of(connection: AsyncConnection, job_id: str, why: str, *, now_ms: int) -> None:
    """Of a locked job that is over."""
    of = standby_windows.c
    ended = {"ended_ms": now_ms, "ended_why": why}
    await connection.execute(update(standby_windows).where(of.job_id == job_id, of.ended_ms.is_(None)).values(**ended))


def _rows() -> Select[Any]:
    return select(standby_windows)


def _window_row(row: Row[Any]) -> WindowRow:
    return WindowRow(
        window_id=row.id,
        project_id=row.project_id,
        job_id=row.job_id,
        days=tuple(row.days.split(",")),
        from_minute=row.from_minute,
        until_minute=row.until_minute,
        zone=row.zone,
        lose_steps=row.lose_steps,
        created_ms=row.created_ms,
        next_from_ms=row.next_from_ms,
        next_until_ms=row.next_until_ms,
        try_ms=row.try_ms,
        told_ms=row.told_ms,
        ended_ms=row.ended_ms,
        ended_why=row.ended_why,
    )
