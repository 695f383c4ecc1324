"""Quotas of whole hosts, and what all quotas of a pool may promise beside what is reserved of it (ADR 0121)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.core.model.pool import JOINED, HostQuota, Pool
from app.core.reserving import FOREVER_MS, GpuReservation, NoRoom, keep_gpus, room_for, room_for_quotas, same_kind
from app.db.connection import Connection
from app.db.pools.hosts import seen_hosts
from app.db.reservations.kept_gpus import gpu_uses, kept_gpus
from app.db.reservations.reservations import (
    ReservationRow,
    add_reservation,
    close_reservation,
    coming_of_pool,
    lock_host_quotas,
    set_host_quota,
)
from app.errors import Conflict, InvalidInput
from app.ports.clock import IdSource
from app.services.reservations.reserve import NO_ROOM

_GIVEN_UP = "its pool's owner has changed the quotas"
_HOW = "lower the quotas, or end what is reserved (allpass reserve list)"
_Key = tuple[str, str, int]  # project, kind of GPU, and GPUs of each host


def checked(pool: Pool, asked: Sequence[HostQuota]) -> tuple[HostQuota, ...]:
    """Those of one project, kind and size as one. Raises InvalidInput for a pool without hosts of its own, and for a
    project that may not use it."""
    if asked and pool.launcher != JOINED:
        raise InvalidInput(
            f"host_quotas: the machines of {pool.name} are of {pool.launcher}, and only hosts that have joined are "
            "bound to a project: give it a quota of GPUs",
            param="host_quotas",
        )
    found: dict[_Key, HostQuota] = {}
    for one in asked:
        if pool.projects and one.project_id not in pool.projects:
            raise InvalidInput(
                f"host_quotas: {one.project_id} may not use {pool.name}: name it among the projects of the pool first",
                param="host_quotas",
            )
        key = one.project_id, _plain(one.gpu_type), one.gpus
        before = found.get(key)
        found[key] = one if before is None else replace(before, hosts=before.hosts + one.hosts)
    return tuple(found[key] for key in sorted(found))


async def settle_quotas(connection: Connection, ids: IdSource, before: Pool, after: Pool, *, now_ms: int) -> None:
    """Write the quotas of hosts of a locked pool as they are to be. What is bound already stays bound.

    Raises Conflict as `not_reservable` where quotas are raised above what is left beside reservations, or hosts with so
    many free of other promises are not there; quotas that are lowered, or stay, are never refused."""
    rows = await lock_host_quotas(connection, after.name)
    its = {_key_of(row): row for row in rows}
    wanted = {_key(one): one for one in after.host_quotas}
    new = {key: _as_reservation(ids.new("resv"), one, after.name, now_ms) for key, one in wanted.items()}
    final = {key: _resized(its[key], new[key]) if key in its else new[key] for key in wanted}
    raised = [one for key, one in final.items() if key not in its or one.gpus > its[key].reservation.gpus]
    if raised or _sum(after) > _sum(before):
        await _check(connection, after, final, raised, now_ms=now_ms)
    for key, row in its.items():
        if key not in final:
            await close_reservation(connection, row.reservation_id, _GIVEN_UP, now_ms=now_ms)
        elif final[key].gpus != row.reservation.gpus:
            await set_host_quota(connection, row.reservation_id, final[key].gpus)
    for key, one in final.items():
        if key not in its:
            await add_reservation(connection, ReservationRow(one, created_ms=now_ms))


async def _check(
    connection: Connection,
    pool: Pool,
    final: Mapping[_Key, GpuReservation],
    raised: Sequence[GpuReservation],
    *,
    now_ms: int,
) -> None:
    coming = await coming_of_pool(connection, pool.name, now_ms=now_ms)
    windows = [one for one in coming if one.piece is None]
    hosts = await seen_hosts(connection, now_ms=now_ms)
    for one in raised:
        others = [*windows, *(other for other in final.values() if other is not one)]
        lacks = room_for(one, others, pool, hosts)
        if lacks is not None:
            raise Conflict(_why_no_hosts(one, lacks, pool), param="host_quotas", code=NO_ROOM)
    lacks = room_for_quotas(pool, [*windows, *final.values()], hosts)
    if lacks is not None:
        raise Conflict(_why_no_gpus(lacks, pool), param="quotas", code=NO_ROOM)
    open_now = [one for one in windows if one.from_ms <= now_ms]
    kept = await kept_gpus(connection, [one.reservation_id for one in (*open_now, *final.values())])
    here = [host for host in hosts if host.pool == pool.name]
    uses = await gpu_uses(connection, {host.host_id for host in here})
    found = keep_gpus([*open_now, *final.values()], kept, here, uses)
    for one in raised:
        if found.short.get(one.reservation_id):
            there = sum(
                sum(same_kind(gpu.name, one.gpu_type) for gpu in host.gpus) >= (one.piece or 1)
                for host in here
                if host.is_open
            )
            raise Conflict(
                _why_not_whole(one, found.short[one.reservation_id], there), param="host_quotas", code=NO_ROOM
            )


def _why_no_hosts(one: GpuReservation, lacks: NoRoom, pool: Pool) -> str:
    if lacks.of == 0:
        return f"host_quotas: no open host of {pool.name} has {one.gpu_type} now: have one join first"
    return (
        f"host_quotas: {_named(one)} cannot be promised: open hosts of {pool.name} have {lacks.of} such GPUs, of which "
        f"{lacks.reserved} are reserved at some moment or another project's quota of hosts, and quotas promise "
        f"{lacks.quotas} GPUs of the pool; {lacks.left} are left. Ask for fewer hosts, {_HOW}"
    )


def _why_no_gpus(lacks: NoRoom, pool: Pool) -> str:
    return (
        f"quotas: {lacks.quotas} GPUs of {pool.name} cannot be promised: {lacks.of} of it may be used at once, and "
        f"{lacks.reserved} of them are reserved at some moment from now on, quotas of hosts included; {lacks.left} are "
        f"left. Promise so many, or {_HOW}"
    )


def _why_not_whole(one: GpuReservation, short: int, there: int) -> str:
    missing = -(-short // (one.piece or 1))
    return (
        f"host_quotas: {_named(one)} cannot be promised: {there} open hosts have so many of them, and {missing} more "
        f"are missing of which no other promise has a part. Ask for fewer hosts, or for fewer GPUs of each, or {_HOW}"
    )


def _named(one: GpuReservation) -> str:
    piece = one.piece or 1
    return f"{one.gpus // piece} x {piece} x {one.gpu_type}"


def _as_reservation(reservation_id: str, one: HostQuota, pool: str, now_ms: int) -> GpuReservation:
    return GpuReservation(reservation_id, one.project_id, pool, one.gpu_type, one.total, now_ms, FOREVER_MS, one.gpus)


def _resized(row: ReservationRow, to: GpuReservation) -> GpuReservation:
    return replace(row.reservation, gpus=to.gpus)


def _key(one: HostQuota) -> _Key:
    return one.project_id, _plain(one.gpu_type), one.gpus


def _key_of(row: ReservationRow) -> _Key:
    of = row.reservation
    return of.project_id, _plain(of.gpu_type), of.piece or 1


def _sum(pool: Pool) -> int:
    return sum(gpus for _, gpus in pool.quotas)


def _plain(gpu_type: str) -> str:
    return "".join(letter for letter in gpu_type.casefold() if letter.isalnum())
