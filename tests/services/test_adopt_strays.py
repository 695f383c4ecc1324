"""Content that nobody told of is found by listing the store, which may be deleted from meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from sqlalchemy import select

from app.db.checkpoints.garbage import condemn_damaged
from app.db.checkpoints.objects import KEPT_MS, add_verified
from app.db.checkpoints.retention import prune
from app.db.engine import Database
from app.db.tables import objects
from app.ports.objects import ObjectInfo
from app.services.checkpoints.collect_garbage import adopt_strays, collect_garbage, delete_condemned
from app.storage.directory import DirectoryStore
from tests.conftest import ManualClock
from tests.services.test_collect_garbage import CONTENTS, World, saved, sha, stored


class BusyStore(DirectoryStore):
    """A store in which something happens right after it has answered."""

    after_listing: Callable[[], Awaitable[None]] | None = None
    after_look: Callable[[], Awaitable[None]] | None = None

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        for info in [info async for info in super().list(prefix)]:
            yield info
        if self.after_listing is not None:
            await self.after_listing()

    async def head(self, key: str) -> ObjectInfo | None:
        found = await super().head(key)
        if self.after_look is not None:
            await self.after_look()
        return found


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> BusyStore:
    return BusyStore(tmp_path / "objects", "http://127.0.0.1:1", "k" * 32, max_object_bytes=1024**2, clock=clock)


@pytest.fixture
async def world(database: Database, store: BusyStore, clock: ManualClock) -> World:
    world = World(database, store, clock)
    await world.begin()
    return world


async def noted(world: World) -> set[str]:
    async with world.database.transaction() as connection:
        return set((await connection.execute(select(objects.c.sha256))).scalars())


async def adopt(world: World) -> int:
    return await adopt_strays(world.database, world.store, world.clock, world.project_id)


async def test_what_is_collected_after_it_was_listed_is_not_noted_as_stored(world: World, store: BusyStore) -> None:
    """The listing is old news by the time that it is looked at."""
    old = await saved(world, 0, step=1)
    async with world.database.transaction() as connection:
        await prune(connection, [old.checkpoint_id], now_ms=world.clock.ms)
    world.clock.advance(ms=KEPT_MS + 1)

    async def collect() -> None:
        store.after_listing = None
        assert await collect_garbage(world.database, store, world.clock, world.project_id) == 1

    store.after_listing = collect
    assert await adopt(world) == 0
    assert await stored(world) == await noted(world) == set()


async def test_what_is_deleted_after_it_was_looked_for_is_not_noted_as_stored(world: World, store: BusyStore) -> None:
    """Somebody tells of a stray, its bytes turn out to be wrong, and they are deleted, while it is being adopted."""
    await world.upload(CONTENTS[0])
    await world.upload(CONTENTS[1])

    async def spoil() -> None:
        store.after_look = None
        wrong, now_ms = sha(CONTENTS[0]), world.clock.ms
        async with world.database.transaction() as connection:
            await add_verified(connection, world.project_id, {wrong: len(CONTENTS[0])}, now_ms=now_ms)
            await condemn_damaged(connection, world.project_id, wrong, now_ms=now_ms)
        await delete_condemned(world.database, store, world.clock, world.project_id)

    store.after_look = spoil
    assert await adopt(world) == 1
    assert await stored(world) == await noted(world) == {sha(CONTENTS[1])}


async def test_strays_wait_for_a_quiet_moment(world: World, store: BusyStore) -> None:
    """While one deletion follows the other nothing is adopted; the round after that finds what was left."""
    await world.upload(CONTENTS[0])
    deletions = 0

    async def delete_another() -> None:
        nonlocal deletions
        deletions += 1
        async with world.database.transaction() as connection:
            await condemn_damaged(connection, world.project_id, sha(CONTENTS[1]), now_ms=world.clock.ms)
        await delete_condemned(world.database, store, world.clock, world.project_id)

    store.after_look = delete_another
    assert await adopt(world) == 0
    assert (deletions, await noted(world)) == (3, set())
    store.after_look = None
    assert await adopt(world) == 1
    assert await noted(world) == {sha(CONTENTS[0])}
