"""One crowded database for all tests of this folder; each test has a copy of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from app.db.engine import Database, make_engine
from app.stack.postgres import EmbeddedPostgres
from tests.conftest import CountingIds, ManualClock
from tests.control.world import World, make_settings
from tests.databases import Databases, execute, name_of
from tests.scale.ground import METERED_MS, Ground, lay_out

_TIMEOUT_S = 60.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In one process, so that the ground is laid out once."""
    for item in items:
        if "tests/scale" in item.nodeid:
            item.add_marker(pytest.mark.xdist_group("scale"))


@pytest.fixture(scope="session")
def crowded(postgres: EmbeddedPostgres, template_database: str) -> Iterator[tuple[str, Ground]]:
    """The URL of a database that is only ever copied, and what is laid out in it."""

    async def lay(url: str) -> Ground:
        database = Database(make_engine(url, pool_size=1, timeout_s=_TIMEOUT_S))
        async with database.transaction() as connection:
            ground = await lay_out(connection)
        await database.close()
        return ground

    with Databases(postgres) as databases:
        url = databases.make(template_database)
        ground = asyncio.run(lay(url))
        execute(url, "VACUUM ANALYZE")
        yield url, ground


@pytest.fixture(scope="session")
def ground(crowded: tuple[str, Ground]) -> Ground:
    return crowded[1]


@pytest.fixture
def database_url(databases: Databases, crowded: tuple[str, Ground]) -> str:
    return databases.make(name_of(crowded[0]))


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(make_engine(database_url, pool_size=8, timeout_s=_TIMEOUT_S))
    yield database
    await database.close()


@pytest.fixture
async def world(database: Database, database_url: str, clock: ManualClock, ids: CountingIds) -> World:
    """A control process over the crowded database, a moment after the busy node has called."""
    clock.ms = METERED_MS + 10_000
    world = World(database, make_settings(database_url), clock, ids)
    await world.open()
    return world
