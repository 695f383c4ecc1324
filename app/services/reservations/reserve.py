"""Reserve GPUs of a pool, and give them up."""

from __future__ import annotations

from collections.abc import Sequence

from app.core.calendar import written
from app.core.model.pool import JOINED, OwnHost, Pool
from app.core.pools import kinds_of
from app.core.reserving import FURTHEST_MS, LONGEST_MS, SHORTEST_MS, GpuReservation, NoRoom, room_for
from app.db.connection import Connection
from app.db.pools.hosts import seen_hosts
from app.db.pools.pools import find_pool
from app.db.reservations.reservations import (
    ReservationRow,
    add_reservation,
    close_reservation,
    coming_number,
    coming_of_pool,
    find_reservation,
)
from app.errors import Conflict, InvalidInput, NotFound
from app.ports.clock import IdSource

NO_ROOM = "not_reservable"
MOST_OF_A_PROJECT, MOST_OF_A_POOL = 1_000, 10_000
_LATE_MS = 60_000  # a window that began so long ago begins now: it was asked for as it began
ENDED_BY_HAND = "it was ended before its time"


async def reserve(
    connection: Connection,
    ids: IdSource,
    project_id: str,
    *,
    pool: str,
    gpu_type: str,
    gpus: int,
    from_ms: int | None,
    until_ms: int,
    now_ms: int,
) -> ReservationRow:
    """So many GPUs of a kind of the pool are kept for the project in that window; `from_ms` None: from now on.

    Raises InvalidInput naming the field, NotFound for a pool that is not there or not for this project, and Conflict as
    `not_reservable` where they are promised to others already, or are not there."""
    found = await find_pool(connection, pool, lock=True)  # what else is reserved of it does not change meanwhile
    if found is None or (found.pool.projects and project_id not in found.pool.projects):
        raise NotFound(f"there is no pool {pool!r:.80} that this project may use (allpass pool list)", param="pool")
    if found.pool.launcher != JOINED:
        raise Conflict(
            f"pool: the machines of {pool} are of {found.pool.launcher}, and only GPUs of hosts that have joined can "
            "be kept: reserve them there",
            param="pool",
            code=NO_ROOM,
        )
    begins_ms = now_ms if from_ms is None else from_ms
    _check_window(begins_ms, until_ms, now_ms)
    asked = GpuReservation(
        ids.new("resv"), project_id, found.pool.name, gpu_type, gpus, max(begins_ms, now_ms), until_ms
    )
    others = await coming_of_pool(connection, pool, now_ms=now_ms)
    if len(others) >= MOST_OF_A_POOL or await coming_number(connection, project_id, now_ms=now_ms) >= MOST_OF_A_PROJECT:
        raise Conflict(
            f"there are {MOST_OF_A_PROJECT} reservations of this project, or {MOST_OF_A_POOL} of {pool}, that are not "
            "over, as many as there can be: end some (allpass reserve end)"
        )
    hosts = await seen_hosts(connection, now_ms=now_ms)
    lacks = room_for(asked, others, found.pool, hosts)
    if lacks is not None:
        raise Conflict(_why_not(asked, lacks, found.pool, hosts), param="gpus", code=NO_ROOM)
    row = ReservationRow(asked, created_ms=now_ms)
    await add_reservation(connection, row)
    return row


async def end_reservation(
    connection: Connection, project_id: str | None, reservation_id: str, *, now_ms: int
) -> ReservationRow:
    """Nothing is kept for it any more; nobody has to leave. One that is over stays as it is. `project_id` None: of any
    project. Raises NotFound."""
    row = await find_reservation(connection, reservation_id, lock=True)
    if row is None or project_id not in (None, row.reservation.project_id) or row.reservation.piece is not None:
        raise no_such(reservation_id)
    if row.ended_ms is not None:
        return row
    await close_reservation(connection, reservation_id, ENDED_BY_HAND, now_ms=now_ms)
    found = await find_reservation(connection, reservation_id)
    assert found is not None  # it is locked
    return found


def no_such(reservation_id: str) -> NotFound:
    return NotFound(f"there is no reservation {reservation_id!r} in this project (allpass reserve list)")


def _check_window(from_ms: int, until_ms: int, now_ms: int) -> None:
    if from_ms < now_ms - _LATE_MS:
        raise InvalidInput(
            f"begins_at: {written(from_ms)} is past, it is {written(now_ms)} now: leave it out to reserve from now on",
            param="begins_at",
        )
    if from_ms > now_ms + FURTHEST_MS:
        raise InvalidInput(
            f"begins_at: {written(from_ms)} is more than 366 days from now: reserve it later", param="begins_at"
        )
    if not SHORTEST_MS <= until_ms - max(from_ms, now_ms) <= LONGEST_MS:
        raise InvalidInput(
            f"ends_at: from {written(from_ms)} until {written(until_ms)} is not between a minute and 31 days: "
            "reserve a window that is, or several",
            param="ends_at",
        )


def _why_not(asked: GpuReservation, lacks: NoRoom, pool: Pool, hosts: Sequence[OwnHost]) -> str:
    """Nobody learns who else has reserved something."""
    what = f"{asked.gpus} x {asked.gpu_type}"
    if lacks.of == 0:
        kinds = sorted({kind for host in hosts if host.pool == pool.name for kind in kinds_of(host)})
        has = f"its open hosts have {', '.join(kinds)}" if kinds else "no host is in it"
        return f"gpus: {pool.name} has no {asked.gpu_type} now, so {what} cannot be kept: {has}"
    promised = f"{lacks.reserved} of them are reserved at some moment of that window"
    if lacks.quotas:
        promised += f", and quotas promise {lacks.quotas} GPUs of the pool"
    if pool.most_gpus is not None:
        promised += f", of which {pool.most_gpus} may be used at once"
    return (
        f"gpus: {what} cannot be kept from {written(asked.from_ms)} until {written(asked.until_ms)}: open hosts of "
        f"{pool.name} have {lacks.of}, {promised}; {lacks.left} are left. Reserve so many, or another window"
    )
