"""Keep single GPUs for reservations whose window is open, and close those that are over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.core.calendar import written
from app.core.reserving import FOREVER_MS, GpuKey, GpuReservation, keep_gpus
from app.db.connection import Connection
from app.db.jobs.steering import lock_standing
from app.db.pools.hosts import lock_host, seen_hosts
from app.db.reservations.kept_gpus import Untold, gpu_uses, keep, kept_gpus, set_kept_until, set_told
from app.db.reservations.reservations import ReservationRow, close_reservation, find_reservation, set_lacks
from app.db.transitions import Event, add_job_event

WINDOW_IS_OVER = "its window is over"
KEPT_FOR_OTHERS = "reserved_for_others"


@dataclass(frozen=True, slots=True)
class KeptChange:
    """What is kept for a reservation from now on, and what it lacks."""

    reservation: GpuReservation
    dropped: tuple[GpuKey, ...]
    added: tuple[GpuKey, ...]
    short: int
    blocked: int


async def changes_of(connection: Connection, rows: Sequence[ReservationRow], *, now_ms: int) -> list[KeptChange]:
    """Of reservations whose windows are open, those of which something is not as it should be."""
    kept = await kept_gpus(connection, [row.reservation_id for row in rows])
    hosts = await seen_hosts(connection, now_ms=now_ms)
    pools = {row.reservation.pool for row in rows}
    uses = await gpu_uses(connection, {host.host_id for host in hosts if host.pool in pools})
    found = keep_gpus([row.reservation for row in rows], kept, hosts, uses)
    changes: list[KeptChange] = []
    for row in rows:
        name = row.reservation_id
        dropped, added = found.dropped.get(name, ()), found.added.get(name, ())
        short, blocked = found.short.get(name, 0), found.blocked.get(name, 0)
        if dropped or added or (short, blocked) != (row.short_gpus, row.blocked_gpus):
            changes.append(KeptChange(row.reservation, dropped, added, short, blocked))
    return changes


async def apply_change(connection: Connection, change: KeptChange, *, now_ms: int) -> bool:
    """As far as it is still open. Machines of a host are ordered under its lock, too: who comes later sees it."""
    row = await find_reservation(connection, change.reservation.reservation_id, lock=True)
    if row is None or row.ended_ms is not None:
        return False
    for host_id in sorted({host_id for host_id, _ in change.added}):
        await lock_host(connection, host_id)
    await set_kept_until(connection, row.reservation_id, change.dropped, now_ms=now_ms)
    await keep(connection, row.reservation_id, change.added, now_ms=now_ms)
    await set_lacks(connection, row.reservation_id, short=change.short, blocked=change.blocked)
    return True


async def close_if_over(connection: Connection, row: ReservationRow, *, now_ms: int) -> bool:
    """Its window is over: nothing is kept for it any more, and nobody has to leave."""
    found = await find_reservation(connection, row.reservation_id, lock=True)
    if found is None or found.ended_ms is not None or found.reservation.until_ms > now_ms:
        return False
    await close_reservation(connection, row.reservation_id, WINDOW_IS_OVER, now_ms=now_ms)
    return True


async def tell_job(connection: Connection, one: Untold, *, now_ms: int) -> None:
    """A guaranteed job of another project goes on, on GPUs that are kept from now on. Whose they are is nobody's
    business."""
    if await lock_standing(connection, one.job_id) is not None:
        told = (
            f"GPUs that it runs on are reserved for another project until {written(one.until_ms)}: it goes on, and is "
            "not made to leave; nothing else of its project begins on them"
        )
        if one.until_ms >= FOREVER_MS:
            told = (
                "GPUs that it runs on are of another project's quota of hosts now: it goes on until a job of that "
                "project wants them, then saves and goes on elsewhere; nothing else of its project begins on them"
            )
        await add_job_event(
            connection, one.job_id, Event(KEPT_FOR_OTHERS, told, {"until_ms": one.until_ms}), now_ms=now_ms
        )
    await set_told(connection, one, now_ms=now_ms)
