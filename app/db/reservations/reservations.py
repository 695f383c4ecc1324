"""Rows of reservations: what is asked for, and what has become of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.reserving import GpuReservation
from app.db import notify
from app.db.tables import reservations, reserved_gpus

_MOST_OPEN = 10_000  # of one decision
_MOST_EXPLAINED = 20


@dataclass(frozen=True, slots=True)
class ReservationRow:
    """As it is written. `short_gpus`: that the pool does not have now; `blocked_gpus`: of those that are kept, that
    guaranteed jobs of other projects are on, which began before."""

    reservation: GpuReservation
    created_ms: int
    short_gpus: int = 0
    blocked_gpus: int = 0
    ended_ms: int | None = None
    ended_why: str | None = None

    @property
    def reservation_id(self) -> str:
        return self.reservation.reservation_id


async def add_reservation(connection: AsyncConnection, row: ReservationRow) -> None:
    """Its pool is locked."""
    of = row.reservation
    await connection.execute(
        insert(reservations).values(
            id=of.reservation_id,
            project_id=of.project_id,
            pool=of.pool,
            gpu_type=of.gpu_type,
            gpus=of.gpus,
            from_ms=of.from_ms,
            until_ms=of.until_ms,
            piece_gpus=of.piece,
            created_ms=row.created_ms,
        )
    )
    await notify.control(connection)


async def find_reservation(
    connection: AsyncConnection, reservation_id: str, *, lock: bool = False
) -> ReservationRow | None:
    statement = select(reservations).where(reservations.c.id == reservation_id)
    row = (await connection.execute(statement.with_for_update() if lock else statement)).one_or_none()
    return None if row is None else _reservation_row(row)


async def reservations_of(
    connection: AsyncConnection, project_id: str, *, after: tuple[int, str] | None = None, limit: int
) -> list[ReservationRow]:
    """Windows of a project, newest first. `after`: when the last one of the page before was asked for, and its id."""
    of = reservations.c
    rows = select(reservations).where(of.project_id == project_id, of.piece_gpus.is_(None))
    if after is not None:
        created_ms, last_id = after
        rows = rows.where((of.created_ms < created_ms) | ((of.created_ms == created_ms) & (of.id < last_id)))
    return await _read(connection, rows.order_by(of.created_ms.desc(), of.id.desc()).limit(limit))


async def open_of_project(connection: AsyncConnection, project_id: str, *, now_ms: int) -> list[ReservationRow]:
    """Those of a project whose window is open; at most 20."""
    of = reservations.c
    is_open = (of.ended_ms.is_(None), of.from_ms <= now_ms, of.until_ms > now_ms)
    rows = select(reservations).where(of.project_id == project_id, *is_open)
    return await _read(connection, rows.order_by(of.from_ms, of.id).limit(_MOST_EXPLAINED))


async def coming_of_pool(connection: AsyncConnection, pool: str, *, now_ms: int) -> list[GpuReservation]:
    """Those of a locked pool that are planned or open."""
    of = reservations.c
    rows = select(reservations).where(of.pool == pool, of.ended_ms.is_(None), of.until_ms > now_ms).order_by(of.id)
    return [row.reservation for row in await _read(connection, rows)]


async def coming_number(connection: AsyncConnection, project_id: str, *, now_ms: int) -> int:
    """How many windows of a project are planned or open."""
    of = reservations.c
    its = (of.project_id == project_id, of.piece_gpus.is_(None))
    rows = select(func.count()).where(*its, of.ended_ms.is_(None), of.until_ms > now_ms)
    return (await connection.execute(rows)).scalar_one()


async def begun_reservations(connection: AsyncConnection, *, now_ms: int) -> list[ReservationRow]:
    """Those whose window has begun, and that are not closed: also those that are over by now."""
    of = reservations.c
    rows = select(reservations).where(of.ended_ms.is_(None), of.from_ms <= now_ms)
    return await _read(connection, rows.order_by(of.from_ms, of.id).limit(_MOST_OPEN))


async def next_begin_ms(connection: AsyncConnection, *, now_ms: int) -> int | None:
    """When the next window begins."""
    of = reservations.c
    rows = select(func.min(of.from_ms)).where(of.ended_ms.is_(None), of.from_ms > now_ms)
    found: int | None = (await connection.execute(rows)).scalar_one_or_none()
    return found


async def set_lacks(connection: AsyncConnection, reservation_id: str, *, short: int, blocked: int) -> None:
    """Of a locked one."""
    of = reservations.c
    values = {"short_gpus": short, "blocked_gpus": blocked}
    await connection.execute(update(reservations).where(of.id == reservation_id).values(**values))


async def set_host_quota(connection: AsyncConnection, reservation_id: str, gpus: int) -> None:
    """Of a locked quota of hosts: how many GPUs it is in all. Which are kept is settled with the next decision."""
    await connection.execute(update(reservations).where(reservations.c.id == reservation_id).values(gpus=gpus))
    await notify.control(connection)


async def lock_host_quotas(connection: AsyncConnection, pool: str) -> list[ReservationRow]:
    """Those of a locked pool, which are locked."""
    of = reservations.c
    rows = select(reservations).where(of.pool == pool, of.ended_ms.is_(None), of.piece_gpus.is_not(None))
    return await _read(connection, rows.order_by(of.id).with_for_update())


async def close_reservation(connection: AsyncConnection, reservation_id: str, why: str, *, now_ms: int) -> None:
    """A locked one is over, and nothing is kept for it any more."""
    of, gpu = reservations.c, reserved_gpus.c
    values = {"ended_ms": now_ms, "ended_why": why, "short_gpus": 0, "blocked_gpus": 0}
    await connection.execute(
        update(reservations).where(of.id == reservation_id, of.ended_ms.is_(None)).values(**values)
    )
    kept = update(reserved_gpus).where(gpu.reservation_id == reservation_id, gpu.until_ms.is_(None))
    await connection.execute(kept.values(until_ms=now_ms))
    await notify.control(connection)


async def close_all_of_pool(connection: AsyncConnection, pool: str, why: str, *, now_ms: int) -> None:
    """Of a locked pool that is removed."""
    await _close_all(connection, reservations.c.pool == pool, why, now_ms)


async def close_all_of_project(connection: AsyncConnection, project_id: str, why: str, *, now_ms: int) -> None:
    """Of a locked project that is archived."""
    await _close_all(connection, reservations.c.project_id == project_id, why, now_ms)


async def _close_all(connection: AsyncConnection, which: ColumnElement[bool], why: str, now_ms: int) -> None:
    rows = select(reservations).where(which, reservations.c.ended_ms.is_(None))
    for row in await _read(connection, rows.order_by(reservations.c.id).with_for_update()):
        await close_reservation(connection, row.reservation_id, why, now_ms=now_ms)


async def _read(connection: AsyncConnection, statement: Select[Any]) -> list[ReservationRow]:
    return [_reservation_row(row) for row in await connection.execute(statement)]


def _reservation_row(row: Row[Any]) -> ReservationRow:
    return ReservationRow(
        GpuReservation(
            row.id, row.project_id, row.pool, row.gpu_type, row.gpus, row.from_ms, row.until_ms, row.piece_gpus
        ),
        created_ms=row.created_ms,
        short_gpus=row.short_gpus,
        blocked_gpus=row.blocked_gpus,
        ended_ms=row.ended_ms,
        ended_why=row.ended_why,
    )
