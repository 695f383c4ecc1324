"""Pools and their hosts, as people read them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from app.core.model.pool import OwnHost
from app.core.pools import is_open
from app.db.connection import Connection
from app.db.pools.hosts import HEARD_WITHIN_MS, HostRow, hosts_of, seen_hosts
from app.db.pools.pools import PoolRow, find_pool, read_pools
from app.errors import NotFound


@dataclass(frozen=True, slots=True)
class ShownHost:
    """`seen`: as offers are made of it; None for facts that cannot be read. `state`: in a word."""

    row: HostRow
    seen: OwnHost | None
    state: str


@dataclass(frozen=True, slots=True)
class ShownPool:
    row: PoolRow
    state: str
    hosts: Sequence[ShownHost]


async def list_pools(connection: Connection, *, after: str | None, limit: int, now_ms: int) -> list[ShownPool]:
    """By name, those behind `after`."""
    rows = [row for row in await read_pools(connection) if after is None or row.pool.name > after][:limit]
    hosts = await _hosts(connection, [row.pool.name for row in rows], now_ms=now_ms)
    return [_shown(row, hosts, now_ms) for row in rows]


async def show_pool(connection: Connection, name: str, *, now_ms: int) -> ShownPool:
    """Raises NotFound."""
    row = await find_pool(connection, name)
    if row is None:
        raise NotFound(f"there is no pool {name!r:.80} (allpass pool list shows those that there are)")
    return _shown(row, await _hosts(connection, [name], now_ms=now_ms), now_ms)


async def _hosts(connection: Connection, pools: Collection[str], *, now_ms: int) -> Mapping[str, list[ShownHost]]:
    seen = {one.host_id: one for one in await seen_hosts(connection, now_ms=now_ms)}
    found: dict[str, list[ShownHost]] = {}
    for row in await hosts_of(connection, pools):
        shown = ShownHost(row, seen.get(row.host_id), _host_state(row, now_ms))
        found.setdefault(row.pool, []).append(shown)
    return found


def _shown(row: PoolRow, hosts: Mapping[str, list[ShownHost]], now_ms: int) -> ShownPool:
    state = "draining" if row.pool.drains_ms is not None else "open" if is_open(row.pool, now_ms) else "closed"
    return ShownPool(row, state, hosts.get(row.pool.name, []))


def _host_state(row: HostRow, now_ms: int) -> str:
    if row.leaves_ms is not None:
        return "leaving"
    if row.heard_ms <= now_ms - HEARD_WITHIN_MS:
        return "silent"
    if row.facts.get("unusable"):
        return "unusable"
    return "draining" if row.drains_ms is not None else "ready"
