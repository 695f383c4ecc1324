"""What is read of hosts: what is given out of them, promised and kept, and nobody waits while there are thousands."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import insert, update

from app.core.model.node import NodeState
from app.core.model.pool import OwnHost, Pool
from app.db.engine import Database
from app.db.pools import hosts as module
from app.db.pools.hosts import HEARD_WITHIN_MS, HostRow, add_host, seen_hosts
from app.db.pools.pools import PoolRow, add_pool
from app.db.tables import host_machines, hosts
from app.db.unreadable import RowReading
from tests.seeds import GIB, seed_node, seed_project

NOW_MS = 10_000_000
FACTS = {
    "cpus": 32,
    "memory_bytes": 256 * GIB,
    "gpus": [{"index": one, "type": "A100", "memory_bytes": 40 * GIB} for one in range(4)],
}


async def joined(database: Database, *names: str) -> None:
    async with database.transaction() as connection:
        await add_pool(connection, PoolRow(Pool("lab"), "", {}, NOW_MS))
        for name in names:
            row = HostRow(name, "lab", name, "1", FACTS, {}, NOW_MS, NOW_MS, None, None, None, 1)
            await add_host(connection, row, nonce_sha256=name.encode().ljust(32, b"\0"))


async def test_each_host_has_what_is_given_out_of_it_and_what_is_promised(database: Database) -> None:
    await joined(database, "host_a", "host_b")
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        own = {"provider": "joined", "state": NodeState.READY}
        has = await seed_node(connection, project_id, host="host_a/A100", **own)
        for host, gpus in (("host_a/A100", 2), ("host_a/H100", 1), ("host_b/A100", 1), ("host_b/A100", 1)):
            booting = {"provider": "joined", "state": NodeState.BOOTING, "gpu_count": gpus}
            await seed_node(connection, project_id, host=host, **booting)
        await connection.execute(
            insert(host_machines).values(
                id="machine_1",
                host_id="host_a",
                node_id=has,
                gpu_indices=[3, 0],
                price_micros_per_hour=1,
                created_ms=NOW_MS,
            )
        )
        found = {one.host_id: one for one in await seen_hosts(connection, now_ms=NOW_MS)}
    assert found["host_a"].taken == (0, 3) and found["host_b"].taken == ()
    assert found["host_a"].awaited == {"host_a/A100": 2, "host_a/H100": 1}
    assert found["host_b"].awaited == {"host_b/A100": 2}
    assert [gpu.index for gpu in found["host_a"].gpus] == [0, 1, 2, 3]


async def test_one_that_is_silent_or_was_left_or_makes_no_sense_is_told_apart(database: Database) -> None:
    await joined(database, "host_a", "host_b", "host_c", "host_d")
    of = hosts.c
    async with database.transaction() as connection:
        silent = NOW_MS - HEARD_WITHIN_MS
        await connection.execute(update(hosts).where(of.id == "host_a").values(heard_ms=silent))
        await connection.execute(update(hosts).where(of.id == "host_b").values(left_ms=NOW_MS))
        await connection.execute(update(hosts).where(of.id == "host_c").values(facts={"gpus": "many"}))
        reading = RowReading()
        found = {one.host_id: one.is_open for one in await seen_hosts(connection, now_ms=NOW_MS, reading=reading)}
    assert found == {"host_a": False, "host_d": True}


async def test_others_go_on_while_thousands_are_read(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await joined(database, *(f"host_{number:04}" for number in range(600)))
    turns, at = 0, set()
    real = module.host_view

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    def seen(*args: Any) -> OwnHost:
        at.add(turns)
        return real(*args)

    monkeypatch.setattr(module, "host_view", seen)
    async with database.transaction() as connection:
        beside = asyncio.create_task(others())
        assert len(await seen_hosts(connection, now_ms=NOW_MS)) == 600
        beside.cancel()
    assert len(at) >= 6, "between the first and the last host nobody else had a turn"
