"""Arrivals, read from the rows of runs and nodes: which first runs count, and what a closed bill says of bytes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from app.core.arrivals import Arrived
from app.core.model.node import NodeState, Tier
from app.db.engine import Database
from app.db.nodes.arrivals import arrived_lately
from tests.seeds import T0_MS, seed_node, seed_project

NOW_MS = T0_MS + 100_000_000


async def read(database: Database, **columns: Any) -> list[Arrived]:
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        await seed_node(connection, project_id, state=NodeState.READY, **{"ready_ms": NOW_MS - 60_000, **columns})
        return await arrived_lately(connection, "local", now_ms=NOW_MS)


async def test_a_machine_on_which_nobody_has_begun_says_nothing(database: Database) -> None:
    assert await read(database) == []
