"""Which network switch each host of a pool is under, as its owner says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.pools.hosts import labels_of_hosts
from app.db.pools.pools import read_pools

_SWITCH = "switch"  # the label that says it, of a host or of its pool


async def switches_of_hosts(connection: AsyncConnection, only: Collection[str] | None = None) -> dict[str, str]:
    """By the host's id: what its label `switch` says, else that of its pool. Hosts of which neither says it are left
    out. `only`: of these hosts."""
    pools = {row.pool.name: _switch_of(row.labels) for row in await read_pools(connection)}
    found = {}
    for host_id, pool, labels in await labels_of_hosts(connection, only):
        switch = _switch_of(labels) or pools.get(pool, "")
        if switch:
            found[host_id] = switch
    return found


def _switch_of(labels: Any) -> str:
    """A row that is not as ours says nothing, and keeps no other from being read."""
    return str(labels.get(_SWITCH) or "") if isinstance(labels, Mapping) else ""
