"""How many requests of usual shapes would fit on hosts of pools now, and what the rest would wait for."""

from __future__ import annotations

from app.core.pool_rooms import FragmentedPools, fragmented_pools
from app.db.connection import Connection
from app.db.pools.hosts import hosts_of, seen_hosts
from app.db.pools.pools import find_pool, read_pools
from app.errors import NotFound

_SWITCH = "switch"  # the label that says it, of a host or of its pool


async def show_fragmentation(connection: Connection, pool: str | None, *, now_ms: int) -> FragmentedPools:
    """Of one pool, or of all. Raises NotFound."""
    if pool is not None and await find_pool(connection, pool) is None:
        raise NotFound(f"there is no pool {pool!r:.80} (allpass pool list shows those that there are)")
    rows = [row for row in await read_pools(connection) if pool in (None, row.pool.name)]
    labels = {row.pool.name: row.labels for row in rows}
    switches = {}
    for host in await hosts_of(connection, list(labels)):
        named = host.labels.get(_SWITCH) or labels[host.pool].get(_SWITCH)
        if named:
            switches[host.host_id] = str(named)
    hosts = await seen_hosts(connection, now_ms=now_ms)
    return fragmented_pools([row.pool for row in rows], hosts, switches, now_ms)
