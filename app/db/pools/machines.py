"""Rows of what runs on hosts: for each node one process of ours, with some of the host's GPUs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, Select, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.arrays import is_one_of
from app.db.tables import host_machines, hosts


@dataclass(frozen=True, slots=True)
class HostMachine:
    """`sealed_order` is what it is started with. It is `ending` from when its end was asked for, and over when its host
    says so, or has gone itself. `host_ends_ms`: when nothing may run on its host any more."""

    machine_id: str
    host_id: str
    node_id: str
    gpu_indices: Sequence[int]
    price_micros: int
    created_ms: int
    sealed_order: bytes | None = None
    order_key_id: str | None = None
    started_ms: int | None = None
    ending_ms: int | None = None
    ended_ms: int | None = None
    detail: str = ""
    host_ends_ms: int | None = None


async def add_machine(connection: AsyncConnection, machine: HostMachine) -> None:
    await connection.execute(
        insert(host_machines).values(
            id=machine.machine_id,
            host_id=machine.host_id,
            node_id=machine.node_id,
            gpu_indices=list(machine.gpu_indices),
            price_micros_per_hour=machine.price_micros,
            sealed_order=machine.sealed_order,
            order_key_id=machine.order_key_id,
            created_ms=machine.created_ms,
        )
    )


async def machines_of_node(connection: AsyncConnection, node_id: str) -> list[HostMachine]:
    """All that ever were, oldest first."""
    return await _read(connection, _every().where(host_machines.c.node_id == node_id))


async def find_machine(connection: AsyncConnection, machine_id: str) -> HostMachine | None:
    return next(iter(await _read(connection, _every().where(host_machines.c.id == machine_id))), None)


async def live_machines(connection: AsyncConnection, host_id: str) -> list[HostMachine]:
    """Those of a host that are not over."""
    of = host_machines.c
    return await _read(connection, _every().where(of.host_id == host_id, of.ended_ms.is_(None)))


async def listed_machines(connection: AsyncConnection, *, since_ms: int) -> list[HostMachine]:
    """Those that are not over, and those that ended since then."""
    ended = host_machines.c.ended_ms
    return await _read(connection, _every().where(or_(ended.is_(None), ended >= since_ms)))


async def set_started(connection: AsyncConnection, machine_id: str, *, now_ms: int) -> None:
    of = host_machines.c
    await connection.execute(
        update(host_machines).where(of.id == machine_id, of.started_ms.is_(None)).values(started_ms=now_ms)
    )


async def set_ending(connection: AsyncConnection, machine_id: str, *, now_ms: int) -> bool:
    """It is to end; whether that is new."""
    of = host_machines.c
    done = await connection.execute(
        update(host_machines)
        .where(of.id == machine_id, of.ending_ms.is_(None), of.ended_ms.is_(None))
        .values(ending_ms=now_ms)
    )
    return bool(done.rowcount)


async def set_over(connection: AsyncConnection, machine_ids: Collection[str], detail: str, *, now_ms: int) -> None:
    """They are over, and what they were started with is forgotten."""
    of = host_machines.c
    await connection.execute(
        update(host_machines)
        .where(is_one_of(of.id, sorted(machine_ids)), of.ended_ms.is_(None))
        .values(ended_ms=now_ms, detail=detail, sealed_order=None, order_key_id=None)
    )


async def set_log_tail(connection: AsyncConnection, machine_id: str, text: str) -> None:
    await connection.execute(update(host_machines).where(host_machines.c.id == machine_id).values(log_tail=text))


async def log_tail_of(connection: AsyncConnection, machine_id: str) -> str:
    statement = select(host_machines.c.log_tail).where(host_machines.c.id == machine_id)
    return (await connection.execute(statement)).scalar_one_or_none() or ""


async def delete_machines(connection: AsyncConnection, *, before_ms: int) -> None:
    """Those that were over by then."""
    await connection.execute(delete(host_machines).where(host_machines.c.ended_ms < before_ms))


def _every() -> Select[Any]:
    joined = host_machines.join(hosts, hosts.c.id == host_machines.c.host_id)
    return (
        select(host_machines, func.least(hosts.c.drains_ms, hosts.c.leaves_ms).label("host_ends_ms"))
        .select_from(joined)
        .order_by(host_machines.c.id)
    )


async def _read(connection: AsyncConnection, statement: Select[Any]) -> list[HostMachine]:
    return [_machine(row) for row in await connection.execute(statement)]


def _machine(row: Row[Any]) -> HostMachine:
    return HostMachine(
        machine_id=row.id,
        host_id=row.host_id,
        node_id=row.node_id,
        gpu_indices=tuple(row.gpu_indices),
        price_micros=row.price_micros_per_hour,
        created_ms=row.created_ms,
        sealed_order=row.sealed_order,
        order_key_id=row.order_key_id,
        started_ms=row.started_ms,
        ending_ms=row.ending_ms,
        ended_ms=row.ended_ms,
        detail=row.detail,
        host_ends_ms=row.host_ends_ms,
    )
