"""One crowded database for all tests of this folder; each test has a copy of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import asyncpg
import pytest

from app.db.engine import Database, make_engine
from app.stack.postgres import EmbeddedPostgres
from tests.conftest import CountingIds, ManualClock
from tests.control.world import World, make_settings
from tests.scale.ground import METERED_MS, Ground, lay_out

_NAME = "allpass_crowded"
_TIMEOUT_S = 60.0
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In one process, so that the ground is laid out once."""
    for item in items:
        if "tests/scale" in item.nodeid:
            item.add_marker(pytest.mark.xdist_group("scale"))


@pytest.fixture(scope="session")
def ground(postgres: EmbeddedPostgres, template_database: str) -> Ground:
    """Laid out in a database that is only ever copied."""
    url = postgres.url()
    _execute(url, f"CREATE DATABASE {_NAME} TEMPLATE {template_database} STRATEGY FILE_COPY")

    async def lay() -> Ground:
        database = Database(make_engine(postgres.url(_NAME), pool_size=1, timeout_s=_TIMEOUT_S))
        async with database.transaction() as connection:
            ground = await lay_out(connection)
        await database.close()
        return ground

    ground = asyncio.run(lay())
    _execute(postgres.url(_NAME), "VACUUM ANALYZE")
    return ground


@pytest.fixture
def database_url(postgres: EmbeddedPostgres, ground: Ground) -> str:
    name = f"crowded_{next(_numbers)}"
    _execute(postgres.url(), f"CREATE DATABASE {name} TEMPLATE {_NAME} STRATEGY FILE_COPY")
    return postgres.url(name)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(make_engine(database_url, pool_size=8, timeout_s=_TIMEOUT_S))
    yield database
    await database.close()


@pytest.fixture
async def world(database: Database, database_url: str, clock: ManualClock, ids: CountingIds) -> World:
    """A control process over the crowded database, a moment after the busy node has called."""
    clock.ms = METERED_MS + 10_000
    world = World(database, make_settings(database_url, leader_lease_s=600), clock, ids)
    await world.open()
    return world


def _execute(url: str, statement: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run())
