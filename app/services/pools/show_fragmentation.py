"""How many requests of usual shapes would fit on hosts of pools now, and what the rest would wait for."""

from __future__ import annotations

from app.core.pool_rooms import FragmentedPools, fragmented_pools
from app.core.topology import domains_of
from app.db.connection import Connection
from app.db.pools.hosts import seen_hosts
from app.db.pools.pools import find_pool, read_pools
from app.db.pools.switches import racks_and_switches
from app.errors import NotFound


async def show_fragmentation(connection: Connection, pool: str | None, *, now_ms: int) -> FragmentedPools:
    """Of one pool, or of all. Raises NotFound."""
    if pool is not None and await find_pool(connection, pool) is None:
        raise NotFound(f"there is no pool {pool!r:.80} (allpass pool list shows those that there are)")
    pools = [row.pool for row in await read_pools(connection) if pool in (None, row.pool.name)]
    domains = domains_of(await racks_and_switches(connection))
    switches = {host_id: switch for host_id, (_, switch) in domains.items() if switch}
    racks = {host_id: rack for host_id, (rack, _) in domains.items() if rack}
    hosts = await seen_hosts(connection, now_ms=now_ms)
    return fragmented_pools(pools, hosts, switches, now_ms, racks)
