"""Hosts that have joined a pool, in the fault matrix: what runs on them is seen in the host's table of processes.

When a machine began and when it was to end is what its host has said: nobody else bills for it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg

import allpass
from allpass.errors import Conflict
from benchmarks.fault_books import Books
from benchmarks.fault_host import PoolHost, kill_machine, processes_of
from benchmarks.fault_way import HostWay

POOL_SETTINGS: Mapping[str, str] = {"ALLPASS_JOINED_STARTUP_DEADLINE_S": "20"}
_POOL, _USD_PER_HOUR = "lab", 0.40
_HOSTS = ("one", "two")


@asynccontextmanager
async def joined_hosts(folder: Path, client: allpass.Client, rows: asyncpg.Pool) -> AsyncIterator[HostBooks]:
    """Two hosts with a GPU each, behind a way that can be broken, for as long as this is open."""
    way = HostWay(str(client.url))
    await way.open()
    hosts = [PoolHost(folder, name) for name in _HOSTS]
    try:
        with suppress(Conflict):  # it is there
            await asyncio.to_thread(client.create_pool, _POOL, price_usd=_USD_PER_HOUR)
        made = await asyncio.to_thread(client.create_pool_token, _POOL, joins=len(hosts))
        for host in hosts:
            await asyncio.to_thread(host.join, way.url, made.token)
            host.start()
        yield HostBooks(hosts, way, rows)
    finally:
        for host in hosts:
            host.come_back()
            host.unplug()
        await way.close()


class HostBooks(Books):
    """Faults are those of the way; switches: `is_full` (the disks of all hosts), `away` (their programs stand still).

    Done to a machine: `stand_still`, `kill_program` (of its host), `restart_program`, `unplug` (its host), `kill` (its
    processes), `end`.
    """

    name = "joined"

    def __init__(self, hosts: list[PoolHost], way: HostWay, rows: asyncpg.Pool) -> None:
        self._hosts, self._way, self._rows = hosts, way, rows
        self._over: set[str] = set()  # what has ended and left no process is not looked for again

    async def settle_in(self) -> None:
        self._way.faults.clear()
        for host in self._hosts:
            host.come_back()

    async def fault(self, body: Mapping[str, Any]) -> None:
        self._way.faults.add(self._way.faults.parse(body))

    async def switch(self, switches: Mapping[str, Any]) -> None:
        for host in self._hosts:
            if switches.get("is_full"):
                host.fill(is_full=True)
            if switches.get("away"):
                host.stand_still()

    async def act(self, ref: str, what: str, body: Mapping[str, Any]) -> None:
        if what in {"kill", "end"}:
            await asyncio.to_thread(kill_machine, ref)
            return
        (host,) = [host for host in self._hosts if host.has(ref)]
        if what == "restart_program":
            host.kill()
            host.start()
            return
        does = {"stand_still": host.stand_still, "kill_program": host.kill, "unplug": host.unplug}
        does[what]()

    async def strikes_left(self) -> int:
        return sum(fault.count for fault in self._way.faults.waiting())

    async def machines(self) -> list[dict[str, Any]]:
        rows = [dict(row) for row in await self._rows.fetch("SELECT * FROM host_machines ORDER BY created_ms, id")]
        known = {row["id"] for row in rows}
        for host in self._hosts:  # what runs and is in no table is somebody's as well
            rows += [_unknown(one) for one in sorted(host.machine_ids() - known)]
        return [await self._told(row) for row in rows]

    async def orphan_micros(self, owned: set[str]) -> int:
        return sum(each["bill"]["amount_micros"] for each in await self.machines() if each["ref"] not in owned)

    async def close(self) -> None:
        """Whoever has opened them ends them."""

    async def _told(self, row: Mapping[str, Any]) -> dict[str, Any]:
        runs = row["id"] not in self._over and bool(await asyncio.to_thread(processes_of, row["id"]))
        if row["ended_ms"] is not None and not runs:
            self._over.add(row["id"])
        live = runs or row["ended_ms"] is None
        return {
            "ref": row["id"],
            "label": row["node_id"],
            "state": "running" if live else "ended",
            "created_ms": row["created_ms"],
            "ended_ms": None if live else row["ended_ms"],
            "price_micros_per_hour": row["price_micros_per_hour"],
            "storage_micros_per_hour": 0,
            "bill": {"amount_micros": _micros(row)},
        }


def _unknown(machine_id: str) -> dict[str, Any]:
    """A machine of no row: it counts while it runs, and costs nobody anything."""
    times = dict.fromkeys(("started_ms", "ending_ms"))
    told = {"id": machine_id, "node_id": "", "created_ms": 0, "ended_ms": 0, "price_micros_per_hour": 0}
    return {**times, **told}


def _micros(row: Mapping[str, Any]) -> int:
    """In started seconds, from when it ran until it was to end."""
    if row["started_ms"] is None:
        return 0
    ends = [each for each in (row["ending_ms"], row["ended_ms"]) if each is not None]
    until_ms = min(ends, default=time.time_ns() // 1_000_000)
    seconds: int = math.ceil(max(0, until_ms - row["started_ms"]) / 1000)
    return round(seconds * int(row["price_micros_per_hour"]) / 3600)
