"""A range that would miss its deadline goes to a larger machine, through the loop; or begins smaller."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from app.core.model.job import JobState, PauseReason, Resources
from app.db.tables import allocations, job_events, jobs, nodes, runs
from tests.control.measured_pool import MeasuredPool
from tests.control.world import World
from tests.seeds import resources_json, seed_node

RANGE = resources_json(Resources(gpus_min=1, gpus_max=4)) | {"gpus_least": 1}


class Late(MeasuredPool):
    """A job with one GPU of a machine of one, 3,600 steps of a second and three quarters of an hour left for them."""

    async def open(self, speeds: dict[int, float], **columns: Any) -> None:
        world = self.world
        now_ms = world.clock.now_ms()
        due = {"deadline_ms": now_ms + 2_700_000, "deadline_given": True, "total_steps": 3_600, "saves_ms": now_ms}
        await self.begin((0,), gpu_count=1, resources=RANGE, **(due | columns))
        self.offers(0.72)
        async with world.database.transaction() as connection:
            await self.measure(connection, speeds)

    async def passes(self) -> None:
        """A minute: what it measures is read now and then."""
        for _ in range(2):
            await self.decide(30_000)

    async def leaves(self) -> None:
        """It has saved and left: its run is over, and it waits."""
        async with self.world.database.transaction() as connection:
            await connection.execute(update(jobs).where(jobs.c.id == self.lender).values(state=JobState.WAITING))
            await connection.execute(update(runs).where(runs.c.id == self.run_id).values(state="ended", ended_ms=1))
            gone = {"to_ms": self.world.clock.now_ms()}
            await connection.execute(update(allocations).where(allocations.c.run_id == self.run_id).values(gone))

    async def row(self) -> Any:
        async with self.world.database.transaction() as connection:
            return (await connection.execute(select(jobs).where(jobs.c.id == self.lender))).one()

    async def words(self, kind: str) -> list[str]:
        async with self.world.database.transaction() as connection:
            of = job_events.c
            return list(
                (
                    await connection.execute(select(of.message).where(of.job_id == self.lender, of.kind == kind))
                ).scalars()
            )


@pytest.fixture
async def pool(world: World) -> Late:
    return Late(world)


async def test_it_saves_and_leaves_for_the_machine_on_which_it_is_in_time(pool: Late) -> None:
    """Two GPUs are enough, and what it asks for from then on; four cost more for each step that is gained."""
    await pool.open({1: 1.0, 2: 1.9, 4: 2.5})
    await pool.passes()
    row = await pool.row()
    assert (row.state, row.resources["gpus_min"], row.resources["gpus_least"]) == (JobState.CHECKPOINTING, 2, 1)
    (told,) = await pool.words("grows_for_deadline")
    assert told == (
        "would miss its deadline by 16 min with 1 GPU: saves, leaves and goes on with 2, which are done 10 min "
        "before it"
    )
    async with pool.world.database.transaction() as connection:
        run = (await connection.execute(select(runs.c.stop_mode).where(runs.c.id == pool.run_id))).one()
    assert run.stop_mode == "checkpoint"
    await pool.leaves()
    await pool.decide(1_000)
    async with pool.world.database.transaction() as connection:
        rented = await connection.execute(select(nodes.c.gpu_count).where(nodes.c.rented_for_job_id == pool.lender))
    assert list(rented.scalars()) == [2]


@pytest.mark.parametrize(
    ("speeds", "columns"),
    [
        ({1: 1.0, 2: 1.1, 4: 1.2}, {}),
        ({1: 1.0}, {}),
        ({1: 1.0, 2: 1.9}, {"deadline_given": False}),
        ({1: 1.0, 2: 1.9}, {"deadline_ms": 1_900_000_000_000}),
        ({1: 1.0, 2: 1.9}, {"saves_ms": None}),
        ({1: 1.0, 2: 1.9}, {"affinity": {"locked": True}}),
        ({1: 1.0, 2: 1.9}, {"pause_reason": PauseReason.USER}),
        ({1: 1.0, 2: 1.9}, {"max_hourly_micros": 800_000}),
        ({1: 1.0, 2: 1.9}, {"total_steps": None}),
    ],
    ids=[
        "late all the same", "nobody knows", "no deadline", "in time", "does not save", "locked", "about to pause",
        "too dear", "no end known",
    ],
)  # fmt: skip
async def test_else_it_stays(pool: Late, speeds: dict[int, float], columns: dict[str, Any]) -> None:
    await pool.open(speeds, **columns)
    await pool.passes()
    row = await pool.row()
    assert (row.state, row.resources["gpus_min"]) == (JobState.RUNNING, 1)
    assert await pool.words("grows_for_deadline") == []


async def test_it_is_taken_from_its_machine_for_this_once_an_hour(pool: Late) -> None:
    """It came to a machine of two, and is late again."""
    await pool.open({1: 1.0, 2: 1.9})
    await pool.passes()
    assert len(await pool.words("grows_for_deadline")) == 1
    async with pool.world.database.transaction() as connection:
        again = {"state": JobState.RUNNING, "resources": RANGE}
        await connection.execute(update(jobs).where(jobs.c.id == pool.lender).values(again))
        await connection.execute(
            update(runs).where(runs.c.id == pool.run_id).values(state="running", stop_mode=None, stop_asked_ms=None)
        )
    for _ in range(3):
        await pool.decide(60_000)
    assert len(await pool.words("grows_for_deadline")) == 1


async def test_where_no_such_machine_comes_it_begins_with_what_it_needs(pool: Late) -> None:
    """After ten minutes, and not before; it is told so, once, also by the next leader."""
    await pool.open({1: 1.0, 2: 1.9})
    await pool.passes()
    pool.world.cloud.on_offer = []
    await pool.leaves()
    await pool.decide(300_000)
    assert (await pool.row()).resources["gpus_min"] == 2
    await pool.world.restart()
    await pool.decide(360_000)
    row = await pool.row()
    assert (row.resources["gpus_min"], row.resources["gpus_max"]) == (1, 4)
    for _ in range(2):
        await pool.decide(60_000)
    assert await pool.words("begins_smaller") == ["no machine with 2 GPUs came in time: begins with 1, as it asks for"]


async def test_a_machine_that_is_there_and_idle_is_taken_where_none_is_on_offer(pool: Late) -> None:
    """And is kept for the job while that saves."""
    pool.world.settings.idle_release_s = 600
    await pool.open({1: 1.0, 2: 1.9})
    pool.world.cloud.on_offer = []
    async with pool.world.database.transaction() as connection:
        idle = await seed_node(connection, pool.world.project_id, gpu_count=2, cpus=48, ready_ms=1)
    for _ in range(2):
        await pool.world.beat(idle)
        await pool.decide(30_000)
    assert (await pool.row()).resources["gpus_min"] == 2
    await pool.leaves()
    await pool.world.beat(idle)
    await pool.decide(1_000)
    async with pool.world.database.transaction() as connection:
        held = await connection.execute(select(allocations.c.node_id).where(allocations.c.to_ms.is_(None)))
    assert list(held.scalars()) == [idle]
