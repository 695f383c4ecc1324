"""Rows of hosts: who has joined, what it has, and when it was heard of."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, delete, exists, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.node import GONE_NODE_STATES
from app.core.model.pool import JOINED, HostGpu, OwnHost
from app.db.arrays import is_one_of
from app.db.tables import host_machines, hosts, nodes, reservations, reserved_gpus, standbys
from app.db.unreadable import RowReading

HEARD_WITHIN_MS = 60_000  # a host that has been silent for longer is given nothing new
_MOST_GPUS = 64
_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class HostRow:
    """`facts` are what the host says of itself. `drains_ms`: when what runs there has to be gone; `leaves_ms`: that,
    and it leaves its pool then."""

    host_id: str
    pool: str
    name: str
    boot_id: str
    facts: Mapping[str, Any]
    labels: Mapping[str, str]
    joined_ms: int
    heard_ms: int
    drains_ms: int | None
    leaves_ms: int | None
    left_ms: int | None
    version: int

    @property
    def ends_ms(self) -> int | None:
        """When what runs there has to be gone."""
        return min((one for one in (self.drains_ms, self.leaves_ms) if one is not None), default=None)


async def add_host(connection: AsyncConnection, host: HostRow, *, nonce_sha256: bytes) -> None:
    """It proves itself with nothing yet."""
    await connection.execute(
        insert(hosts).values(
            id=host.host_id,
            pool=host.pool,
            name=host.name,
            nonce_sha256=nonce_sha256,
            boot_id=host.boot_id,
            facts=dict(host.facts),
            labels=dict(host.labels),
            joined_ms=host.joined_ms,
            heard_ms=host.heard_ms,
        )
    )


async def host_of_nonce(connection: AsyncConnection, pool: str, nonce_sha256: bytes) -> HostRow | None:
    """The host that has joined the pool with it, and has not left."""
    of = hosts.c
    return await _one(connection, select(hosts).where(of.pool == pool, of.nonce_sha256 == nonce_sha256, _here()))


async def host_of_token(connection: AsyncConnection, token_sha256: bytes) -> HostRow | None:
    return await _one(connection, select(hosts).where(hosts.c.token_sha256 == token_sha256, _here()))


async def find_host(connection: AsyncConnection, host_id: str) -> HostRow | None:
    return await _one(connection, select(hosts).where(hosts.c.id == host_id))


async def lock_host(connection: AsyncConnection, host_id: str) -> HostRow | None:
    """Its GPUs are given out under this lock."""
    return await _one(connection, select(hosts).where(hosts.c.id == host_id).with_for_update())


async def hosts_of(connection: AsyncConnection, pools: Collection[str]) -> list[HostRow]:
    """Of these pools, those that have not left, the oldest first."""
    statement = select(hosts).where(_here(), is_one_of(hosts.c.pool, pools)).order_by(hosts.c.id)
    return [_host_row(row) for row in await connection.execute(statement)]


async def labels_of_hosts(
    connection: AsyncConnection, only: Collection[str] | None = None
) -> list[tuple[str, str, Any]]:
    """Of hosts that have not left, or of these: id, pool and labels, as they were written."""
    statement = select(hosts.c.id, hosts.c.pool, hosts.c.labels).where(_here()).order_by(hosts.c.id)
    if only is not None:
        statement = statement.where(is_one_of(hosts.c.id, sorted(only)))
    return [(row.id, row.pool, row.labels) for row in await connection.execute(statement)]


async def set_heard(
    connection: AsyncConnection, host_id: str, *, boot_id: str, facts: Mapping[str, Any], now_ms: int
) -> None:
    """It has called, and says this of itself."""
    values = {"boot_id": boot_id, "facts": dict(facts), "heard_ms": now_ms}
    await connection.execute(update(hosts).where(hosts.c.id == host_id).values(**values))


async def set_token(connection: AsyncConnection, host_id: str, token_sha256: bytes) -> None:
    """What the host proves itself with from now on."""
    await connection.execute(update(hosts).where(hosts.c.id == host_id).values(token_sha256=token_sha256))


async def set_leaves(connection: AsyncConnection, host_id: str, leaves_ms: int | None) -> None:
    """From when on nothing may run there; None: it stays after all."""
    values = {"leaves_ms": leaves_ms, "desired_version": hosts.c.desired_version + 1}
    await connection.execute(update(hosts).where(hosts.c.id == host_id).values(**values))


async def set_drains(connection: AsyncConnection, host_id: str, drains_ms: int | None) -> None:
    """From when on nothing may run there, for a while; None: it takes jobs again."""
    await connection.execute(update(hosts).where(hosts.c.id == host_id).values(drains_ms=drains_ms))


async def set_labels(connection: AsyncConnection, host_id: str, labels: Mapping[str, str]) -> None:
    """What its owner says of it, in place of what was said before."""
    await connection.execute(update(hosts).where(hosts.c.id == host_id).values(labels=dict(labels)))


async def set_left(connection: AsyncConnection, host_id: str, *, now_ms: int) -> None:
    """It is none of ours any more, and its token is worth nothing."""
    await connection.execute(update(hosts).where(hosts.c.id == host_id).values(left_ms=now_ms, token_sha256=None))


async def delete_left_hosts(connection: AsyncConnection, *, before_ms: int) -> None:
    """Those that had left by then, with what ran on them."""
    await connection.execute(delete(hosts).where(hosts.c.left_ms < before_ms))


async def raise_version(connection: AsyncConnection, host_id: str) -> None:
    """What the host should do has changed."""
    statement = update(hosts).where(hosts.c.id == host_id)
    await connection.execute(statement.values(desired_version=hosts.c.desired_version + 1))


async def seen_hosts(connection: AsyncConnection, *, now_ms: int, reading: RowReading | None = None) -> list[OwnHost]:
    """All hosts that have not left, with what is given out of them and what is promised; those that cannot be read are
    noted."""
    reading = RowReading() if reading is None else reading
    (taken, lent), kept = await _taken(connection), await _kept(connection)
    awaited: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name, number in (await _awaited(connection)).items():
        awaited[name.partition("/")[0]][name] = number
    found: list[OwnHost] = []
    rows = await connection.execute(select(hosts).where(_here()).order_by(hosts.c.id))
    for number, row in enumerate(rows, 1):
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)  # thousands of hosts are no reason to keep everybody waiting
        host = reading.of(
            hosts.name,
            row.id,
            lambda row=row: host_view(  # type: ignore[misc]
                _host_row(row),
                taken.get(row.id, ()),
                awaited.get(row.id, {}),
                now_ms,
                lent.get(row.id, ()),
                kept.get(row.id, {}),
            ),
        )
        if host is not None:
            found.append(host)
    return found


async def others_compute_at(connection: AsyncConnection, node_id: str, *, now_ms: int) -> bool:
    """Whether a host said of late that somebody else's processes are on GPUs which this node has there."""
    rows = await connection.execute(
        select(host_machines.c.gpu_indices, hosts.c.facts["gpus"].label("gpus"))
        .join(hosts, hosts.c.id == host_machines.c.host_id)
        .where(host_machines.c.node_id == node_id, hosts.c.heard_ms > now_ms - HEARD_WITHIN_MS)
    )
    return any(gpu.get("busy") and gpu.get("index") in row.gpu_indices for row in rows for gpu in row.gpus or ())


def host_view(
    row: HostRow,
    taken: tuple[int, ...],
    awaited: Mapping[str, int],
    now_ms: int,
    lent: tuple[int, ...] = (),
    kept: Mapping[int, str] | None = None,
) -> OwnHost:
    """As offers are made of it. Raises for facts that are none."""
    gpus = tuple(
        HostGpu(int(gpu["index"]), str(gpu["type"]), int(gpu["memory_bytes"]), bool(gpu.get("busy", False)))
        for gpu in row.facts.get("gpus", [])[:_MOST_GPUS]
    )
    return OwnHost(
        host_id=row.host_id,
        pool=row.pool,
        cpus=int(row.facts["cpus"]),
        memory_bytes=int(row.facts["memory_bytes"]),
        gpus=gpus,
        taken=taken,
        awaited=dict(awaited),
        is_open=row.ends_ms is None and row.heard_ms > now_ms - HEARD_WITHIN_MS and not row.facts.get("unusable"),
        for_all=row.facts.get("for_all") is True,
        lent=lent,
        kept=dict(kept or {}),
    )


_Indices = dict[str, tuple[int, ...]]


async def _taken(connection: AsyncConnection) -> tuple[_Indices, _Indices]:
    """By host: GPUs that machines have, and those that are lent by jobs which stand by. Two may have one: a machine
    that was called back, and the one that leaves it."""
    of = host_machines.c
    is_lent = exists().where(standbys.c.node_id == of.node_id, is_lending()).label("is_lent")
    rows = await connection.execute(select(of.host_id, of.gpu_indices, is_lent).where(of.ended_ms.is_(None)))
    taken: defaultdict[str, set[int]] = defaultdict(set)
    lent: defaultdict[str, set[int]] = defaultdict(set)
    for row in rows:
        (lent if row.is_lent else taken)[row.host_id].update(row.gpu_indices)
    return _sorted(taken), _sorted(lent)


def is_lending() -> ColumnElement[bool]:
    """Of a row of `standbys`: its job has left its GPUs, and was not called back."""
    of = standbys.c
    return of.left_ms.is_not(None) & of.called_ms.is_(None) & of.ended_ms.is_(None)


async def _kept(connection: AsyncConnection) -> dict[str, dict[int, str]]:
    """By host: the GPUs that are reserved now, and for which project."""
    of = reserved_gpus.c
    rows = await connection.execute(
        select(of.host_id, of.gpu_index, reservations.c.project_id)
        .join(reservations, reservations.c.id == of.reservation_id)
        .where(of.until_ms.is_(None))
    )
    found: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for row in rows:
        found[row.host_id][row.gpu_index] = row.project_id
    return dict(found)


def _sorted(found: Mapping[str, set[int]]) -> _Indices:
    return {host_id: tuple(sorted(indices)) for host_id, indices in found.items()}


async def _awaited(connection: AsyncConnection) -> dict[str, int]:
    """GPUs of nodes that are to have a machine and have none yet, by what their offers name as their host."""
    of = nodes.c
    has_machine = exists().where(host_machines.c.node_id == of.id)
    rows = await connection.execute(
        select(of.host, func.sum(of.gpu_count).label("gpus"))
        .where(of.provider == JOINED, of.state.not_in(GONE_NODE_STATES), ~has_machine)
        .group_by(of.host)
    )
    return {row.host: int(row.gpus) for row in rows}


async def _one(connection: AsyncConnection, statement: Select[Any]) -> HostRow | None:
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _host_row(row)


def _here() -> Any:
    return hosts.c.left_ms.is_(None)


def _host_row(row: Row[Any]) -> HostRow:
    return HostRow(
        host_id=row.id,
        pool=row.pool,
        name=row.name,
        boot_id=row.boot_id,
        facts=row.facts,
        labels=row.labels,
        joined_ms=row.joined_ms,
        heard_ms=row.heard_ms,
        drains_ms=row.drains_ms,
        leaves_ms=row.leaves_ms,
        left_ms=row.left_ms,
        version=row.desired_version,
    )
