"""Which network switch each host of a pool is under, and in which rack, as its owner says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.pools.hosts import labels_of_hosts
from app.db.pools.pools import read_pools

_RACK, _SWITCH = "rack", "switch"  # the labels that say it, of a host or of its pool


async def racks_and_switches(
    connection: AsyncConnection, only: Collection[str] | None = None
) -> dict[str, tuple[str, str]]:
    """By the host's id: what its labels `rack` and `switch` say, else those of its pool; of hosts of which one of the
    two is said, the other may be empty, and those of which neither is are left out. `only`: of these hosts."""
    pools = {row.pool.name: row.labels for row in await read_pools(connection)}
    found = {}
    for host_id, pool, labels in await labels_of_hosts(connection, only):
        whole = pools.get(pool)
        said = (_said(labels, _RACK) or _said(whole, _RACK), _said(labels, _SWITCH) or _said(whole, _SWITCH))
        if any(said):
            found[host_id] = said
    return found


def _said(labels: Any, name: str) -> str:
    """A row that is not as ours says nothing, and keeps no other from being read."""
    return str(labels.get(name) or "") if isinstance(labels, Mapping) else ""
