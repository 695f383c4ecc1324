"""The policy `cornucopia` through the loop: a machine that is full, and who gets what of it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from app.core.model.job import JobState, Resources
from app.core.policies.cornucopia import LENT_WITHIN_MS
from app.db.engine import Database
from app.db.jobs.reads import find_job
from app.db.tables import allocations, jobs, runs
from app.services.reading.explain_job import explain_job
from tests.conftest import CountingIds, ManualClock
from tests.control.world import World, make_settings
from tests.seeds import resources_json, seed_job, seed_node, seed_run

HOUR_MS = 3_600_000


class Full:
    """A machine of one GPU that a batch job has, in a world where nothing can be rented."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def open(self, **columns: Any) -> None:
        world, now_ms = self.world, self.world.clock.now_ms()
        world.cloud.on_offer = []
        job = {"state": JobState.RUNNING, "epoch": 1, "saves_ms": now_ms, "submitted_ms": now_ms} | columns
        async with world.database.transaction() as connection:
            self.node_id = await seed_node(connection, world.project_id, gpu_count=1, cpus=48)
            self.holder = await seed_job(connection, world.project_id, world.app, **job)
            self.run_id = await seed_run(connection, world.project_id, self.holder, self.node_id, gpu_indices=(0,))
            since = {"running_ms": now_ms}
            await connection.execute(update(runs).where(runs.c.id == self.run_id).values(since))

    async def comes(self, **columns: Any) -> str:
        return await self.world.submit(resources=resources_json(Resources(1, 1)), **columns)

    async def decide(self, after_ms: int = 0) -> None:
        self.world.clock.advance(ms=after_ms)
        await self.world.beat(self.node_id)
        await self.world.decide()

    async def state(self, job_id: str) -> str:
        async with self.world.database.transaction() as connection:
            return str((await connection.execute(select(jobs.c.state).where(jobs.c.id == job_id))).scalar_one())

    async def leaves(self) -> None:
        """Its job is over, and the GPU is free."""
        now_ms = self.world.clock.now_ms()
        async with self.world.database.transaction() as connection:
            done = {"state": JobState.SUCCEEDED, "ended_ms": now_ms}
            await connection.execute(update(jobs).where(jobs.c.id == self.holder).values(done))
            await connection.execute(
                update(runs).where(runs.c.id == self.run_id).values(state="ended", ended_ms=now_ms)
            )
            gone = {"to_ms": now_ms}
            await connection.execute(update(allocations).where(allocations.c.run_id == self.run_id).values(gone))


@pytest.fixture
async def full(database: Database, database_url: str, clock: ManualClock, ids: CountingIds) -> Full:
    world = World(database, make_settings(database_url, policy="cornucopia", idle_release_s=600), clock, ids)
    await world.open()
    found = Full(world)
    await found.open()
    return found


async def test_what_falls_free_goes_to_who_is_waited_for(full: Full) -> None:
    """Though others came before, and are due earlier."""
    now_ms = full.world.clock.now_ms()
    batch = await full.comes(deadline_ms=now_ms + HOUR_MS)
    interactive = await full.comes(kind="interactive", kind_said=True, deadline_ms=now_ms + 90 * HOUR_MS)
    await full.decide()
    assert [await full.state(one) for one in (batch, interactive, full.holder)] == ["queued", "queued", "running"]
    await full.leaves()
    await full.decide(1_000)
    assert [await full.state(one) for one in (batch, interactive)] == ["queued", "starting"]


async def test_a_batch_job_is_stopped_for_it_once_it_might_have_been_lent_something(full: Full) -> None:
    interactive = await full.comes(kind="interactive", kind_said=True)
    await full.decide()
    assert await full.state(full.holder) == "running"
    await full.decide(LENT_WITHIN_MS)
    assert await full.state(full.holder) == "checkpointing"
    async with full.world.database.transaction() as connection:
        row = await find_job(connection, full.world.project_id, full.holder)
        assert row is not None
        told = await explain_job(connection, full.world.settings, row, now_ms=full.world.clock.now_ms())
    assert interactive in str(told), "it is said for whom"


async def test_one_that_never_saved_is_stopped_for_nobody(full: Full) -> None:
    async with full.world.database.transaction() as connection:
        await connection.execute(update(jobs).where(jobs.c.id == full.holder).values(saves_ms=None))
    full.world.saves_when_asked = False
    await full.comes(kind="interactive", kind_said=True)
    for _ in range(3):
        await full.decide(LENT_WITHIN_MS)
    assert await full.state(full.holder) == "running"
