"""Hosts are drained for maintenance, or forgotten when they do not answer any more."""

from __future__ import annotations

from dataclasses import replace

from app.db.connection import Connection
from app.db.engine import Database
from app.db.nodes.lifecycle import read_node
from app.db.nodes.lifetimes import set_end
from app.db.pools.hosts import HostRow, hosts_of, lock_host, set_drains, set_left
from app.db.pools.machines import live_machines, set_over
from app.errors import Conflict, NotFound
from app.ports.clock import IdSource
from app.services.nodes.lose_node import lose_node
from app.services.pools.join_host import tell_offers

_SILENT_MS = 60_000


async def set_host_ends(connection: Connection, host: HostRow, *, now_ms: int) -> None:
    """Its nodes know at once, not at the next listing, when they have to be gone."""
    nodes = [one.node_id for one in await live_machines(connection, host.host_id)]
    await set_end(connection, nodes, host.ends_ms, now_ms=now_ms)


async def find_in_pool(connection: Connection, pool: str, named: str) -> HostRow:
    """A host by its id or name. Raises NotFound, and Conflict for a name that several have."""
    found = [one for one in await hosts_of(connection, [pool]) if named in (one.host_id, one.name)]
    if not found:
        raise NotFound(f"there is no host {named!r:.80} in pool {pool} (allpass pool show {pool})")
    if len(found) > 1:
        ids = ", ".join(one.host_id for one in found[:5])
        raise Conflict(f"{len(found)} hosts of pool {pool} are called {named}: name one by its id ({ids})")
    return found[0]


async def drain_host(connection: Connection, pool: str, named: str, *, within_ms: int | None, now_ms: int) -> HostRow:
    """It takes nothing new, and what runs there moves away within that time; it stays in its pool. None: it takes jobs
    again."""
    host = await find_in_pool(connection, pool, named)
    host = replace(host, drains_ms=None if within_ms is None else now_ms + within_ms)
    await set_drains(connection, host.host_id, host.drains_ms)
    await set_host_ends(connection, host, now_ms=now_ms)
    await tell_offers(connection, now_ms=now_ms)
    return host


async def forget_host(
    database: Database, ids: IdSource, pool: str, named: str, *, fault_budget: int, now_ms: int
) -> HostRow:
    """A host that does not answer any more is in no pool: what ran there goes on elsewhere, from its last checkpoint.
    Raises NotFound, and Conflict for one that answers: that one is asked to leave."""
    async with database.transaction() as connection:
        host = await find_in_pool(connection, pool, named)
        await lock_host(connection, host.host_id)
        if now_ms - host.heard_ms < _SILENT_MS:
            raise Conflict(
                f"{host.name} was heard of {(now_ms - host.heard_ms) // 1000} s ago: have it leave "
                f"(allpass node leave there, or allpass pool drain {pool} --host {host.host_id})"
            )
        machines = await live_machines(connection, host.host_id)
        why = f"{host.name} of pool {pool} was forgotten by its owner"
        await set_over(connection, [one.machine_id for one in machines], why, now_ms=now_ms)
        await set_left(connection, host.host_id, now_ms=now_ms)
        await tell_offers(connection, now_ms=now_ms)
    for machine in machines:
        async with database.transaction() as connection:
            if await read_node(connection, machine.node_id) is not None:
                await lose_node(connection, ids, machine.node_id, why, now_ms=now_ms, fault_budget=fault_budget)
    return host
