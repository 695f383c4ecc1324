"""The policy `cornucopia` through the loop: a machine that is full, and who gets what of it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from app.core.elastic.queues import QueueThresholds
from app.core.elastic.rules import MENDED
from app.core.model.job import JobState, Resources
from app.core.policies.cornucopia import LENT_WITHIN_MS
from app.db.engine import Database
from app.db.jobs.reads import find_job
from app.db.queues.thresholds import queue_means, thresholds_of
from app.db.tables import allocations, jobs, queue_thresholds, runs
from app.services.reading.explain_job import explain_job
from app.services.sizes.stand_in_queues import count_unseen, look_at_queues, set_changed
from tests.conftest import CountingIds, ManualClock
from tests.control.poison import poison
from tests.control.test_lending import Pool
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
        await self._begins()

    async def another(self, **columns: Any) -> None:
        """In the place of the one that has left, and seen by a decision."""
        job = {"state": JobState.RUNNING, "epoch": 1, "saves_ms": 1} | columns
        async with self.world.database.transaction() as connection:
            self.holder = await seed_job(connection, self.world.project_id, self.world.app, **job)
        await self._begins()
        await self.decide(1_000)

    async def _begins(self) -> None:
        async with self.world.database.transaction() as connection:
            self.run_id = await seed_run(connection, self.world.project_id, self.holder, self.node_id, gpu_indices=(0,))
            since = {"running_ms": self.world.clock.now_ms()}
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

    async def leaves(self, ran_ms: int = 0) -> None:
        """Its job is over, and the GPU is free."""
        now_ms = self.world.clock.now_ms()
        async with self.world.database.transaction() as connection:
            done = {"state": JobState.SUCCEEDED, "ended_ms": now_ms, "ran_ms": ran_ms}
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


async def test_for_one_that_is_lent_a_gpu_nobody_else_is_stopped(full: Full) -> None:
    """The lender's step is long: it leaves after twenty seconds, and ten have passed since the other one came."""
    pool = Pool(full.world)
    await pool.begin(saves_ms=1, submitted_ms=full.world.clock.now_ms())
    async with full.world.database.transaction() as connection:
        hour_ago = {"running_ms": full.world.clock.now_ms() - HOUR_MS}
        await connection.execute(update(runs).where(runs.c.id == full.run_id).values(hour_ago))
    waits = await full.comes()
    await full.decide()
    assert await pool.size() == (3, [0, 1, 2, 3]), "it gives one up"
    for _ in range(2):
        await full.world.beat(pool.node_id)
        await full.decide(LENT_WITHIN_MS)
        assert await full.state(full.holder) == "running"
    await pool.says(0, 1, 2)
    await full.decide()
    assert await full.state(waits) == "starting"


# What jobs that end show


async def means(full: Full) -> tuple[float, float, tuple[int, int]]:
    project_id = full.world.project_id
    async with full.world.database.transaction() as connection:
        known = (await thresholds_of(connection, [project_id])).get(project_id, QueueThresholds())
    return known.interactive_s, known.batch_s, known.counts


async def test_jobs_that_end_say_when_others_are_long(full: Full, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody is elastic, too: each once, by its kind, and kept; then decisions go by it."""
    monkeypatch.setattr("app.core.elastic.queues.RE_ESTIMATED_EVERY", 3)
    await full.decide()
    await full.leaves(300_000)
    await full.another(kind="interactive", kind_said=True)
    assert await means(full) == (600.0, 3600.0, (0, 1))
    await full.leaves(40_000)
    await full.another()
    assert await means(full) == (600.0, 3600.0, (1, 1))
    await full.leaves(100_000)
    await full.another(kind="interactive", kind_said=True)
    assert await means(full) == (40.0, 200.0, (0, 0))
    await full.world.restart()
    await full.decide(60_000)
    await full.comes(kind="interactive", kind_said=True)
    await full.decide(10_000)
    assert await full.state(full.holder) == "running", "it has had 71 s, and falls after 80"
    await full.decide(10_000)
    assert await full.state(full.holder) == "checkpointing"
    assert await means(full) == (40.0, 200.0, (0, 0))


async def test_what_waits_again_has_not_ended(full: Full) -> None:
    await full.decide()
    await full.comes(kind="interactive", kind_said=True)
    await full.decide(LENT_WITHIN_MS)
    now_ms = full.world.clock.now_ms()
    async with full.world.database.transaction() as connection:
        await connection.execute(update(jobs).where(jobs.c.id == full.holder).values(state="waiting", ran_ms=9_000))
        ended = update(runs).where(runs.c.id == full.run_id).values(state="ended", ended_ms=now_ms)
        await connection.execute(ended)
    await full.decide(1_000)
    assert await full.world.rows(queue_thresholds) == []


async def test_who_stood_beside_an_elastic_job_is_counted_with_those(full: Full) -> None:
    """And not here too. One that never ran shows nothing, and of one that is not there nobody asks."""
    world = full.world
    async with world.database.transaction() as connection:
        seen, never, ran = [
            await seed_job(connection, world.project_id, world.app, state="succeeded", ended_ms=1, ran_ms=ran_ms)
            for ran_ms in (5_000, 0, 7_000)
        ]
        (looked, *_), _ = await look_at_queues(connection, [seen], MENDED, now_ms=1)
        await set_changed(connection, [looked], now_ms=1)
        assert await count_unseen(connection, [seen, never, ran, full.holder, "job_gone"], now_ms=1) == 1
        assert await count_unseen(connection, [], now_ms=1) == 0
    assert (await means(full))[2] == (0, 1)


async def test_means_that_cannot_be_kept_or_read_stop_nothing(full: Full) -> None:
    """It is decided as if nothing had been shown."""
    await full.decide()
    await full.leaves(300_000)
    await poison(full.world, "queue_thresholds", full.world.project_id)
    await full.another()
    assert await full.world.rows(queue_thresholds) == []
    await full.leaves()
    job_id = await full.comes()
    await full.decide(1_000)
    assert await full.state(job_id) == "starting"


@pytest.mark.parametrize("mean_s", [float("nan"), float("inf"), 0.0, -1.0])
async def test_means_that_make_no_sense_are_none(full: Full, mean_s: float) -> None:
    figures = dict.fromkeys(("interactive_sum_s", "batch_sum_s", "interactive_count", "batch_count"), 0)
    row = {"project_id": full.world.project_id, "interactive_s": 60.0, "batch_s": mean_s, "updated_ms": 1} | figures
    async with full.world.database.transaction() as connection:
        await connection.execute(queue_thresholds.insert().values(row))
        assert await queue_means(connection) == ()
    await full.comes(kind="interactive", kind_said=True)
    await full.decide(LENT_WITHIN_MS)
    assert await full.state(full.holder) == "checkpointing"


async def test_by_another_policy_nobody_counts(world: World) -> None:
    full = Full(world)
    await full.open()
    await full.decide()
    await full.leaves(300_000)
    await full.another()
    assert await world.rows(queue_thresholds) == []
