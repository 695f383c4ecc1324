"""The world in which every test of the control loop plays."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from app.db.engine import Database
from tests.conftest import CountingIds, ManualClock
from tests.control.world import World, make_settings


@pytest.fixture
async def world(database: Database, database_url: str, clock: ManualClock, ids: CountingIds) -> World:
    world = World(database, make_settings(database_url), clock, ids)
    await world.open()
    return world


@pytest.fixture
async def observer(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection beside the world's own, which sees who holds and awaits locks."""
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()
