"""A job is looked at before it trains: what comes of it is kept, costs what it took, and never harms the job."""

from __future__ import annotations

import math
from typing import Any

import pytest
from sqlalchemy import select

from allpass.recipe.packing import SCRIPT_NAME
from app.core.model.snapshot import JobView
from app.db import tables as t
from app.db.decisions.snapshots import freeze, read_snapshot
from app.db.engine import Database, make_engine
from app.db.runs.desired_state import orders
from app.db.tables import profiles
from app.services.jobs.cancel_job import cancel_job
from app.services.jobs.pause_job import pause_job
from app.services.nodes.lose_node import lose_node
from tests.conftest import CountingIds, ManualClock
from tests.control.test_merging_crashes import DyingDatabase, KilledError
from tests.control.world import World, make_settings
from tests.seeds import seed_app

PROFILE = {"fisher": [0.5, 0.25, 0.0], "pull": [0.1, -0.2, 0.3], "rows": 64, "tokens": 4096}
PLAIN = {"model": "tiny", "task": "classification", "sequence_length": 32, "target": {"eval_accuracy": 0.9}}
SECONDS = 30


@pytest.fixture
async def world(database: Database, database_url: str, clock: ManualClock, ids: CountingIds) -> World:
    """Jobs of the built-in recipe, under `allpass` with merging."""
    world = World(database, make_settings(database_url, policy="allpass", merge_modes="in-turn,together"), clock, ids)
    await world.open()
    return world


class Looked:
    """Two jobs of which the first is being profiled on `node_id`, by the run `run_id`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.job_id = self.other_id = self.node_id = self.run_id = ""

    async def begin(self, *, runs: bool = True) -> Looked:
        world = self.world
        self.job_id, self.other_id = await recipe_job(world), await recipe_job(world)
        await world.decide()
        await world.work()
        self.node_id = await world.node_of(self.job_id)
        await world.boot(self.node_id)
        (self.run_id,) = [row.run_id for row in await world.rows(t.run_jobs) if row.job_id == self.job_id]
        if runs:
            assert await world.report(self.node_id, "running")
            world.clock.advance(s=SECONDS)
        return self

    async def ends(self, **exit_: Any) -> None:
        assert await self.world.report(self.node_id, "exited", **exit_)

    async def job(self) -> Any:
        return await self.world.job(self.job_id)


async def recipe_job(world: World) -> str:
    """A job with rows of its own."""
    number = len(await world.rows(t.jobs))
    async with world.database.transaction() as connection:
        world.app = await seed_app(connection, world.project_id, entrypoint=SCRIPT_NAME, bundle_sha256=f"{number:064x}")
    return await world.submit(parameters=PLAIN, start="auto")


async def seen(world: World, job_id: str) -> JobView:
    async with world.database.transaction() as connection:
        await freeze(connection)
        found = await read_snapshot(
            connection, world.clock.now_ms(), world.control.context.traits(), 10**9, merging=True
        )
    return {job.job_id: job for job in found.jobs}[job_id]


async def purposes(world: World, job_id: str) -> list[str]:
    asked = select(t.runs.c.purpose).join(t.run_jobs, t.run_jobs.c.run_id == t.runs.c.id)
    async with world.database.transaction() as connection:
        rows = await connection.execute(asked.where(t.run_jobs.c.job_id == job_id).order_by(t.run_jobs.c.epoch))
        return list(rows.scalars())


async def test_a_profile_is_kept_and_its_job_waits_to_train(world: World) -> None:
    """Its machine is told what for; what it found is in the next decision, which places the job to train. The look has
    cost what the machine took, and counts neither as training nor as time on serverless."""
    looked = await Looked(world).begin()
    async with world.database.transaction() as connection:
        (order,) = await orders(connection, looked.node_id)
    assert order.purpose == "profile"
    await looked.ends(exit_code=0, profile=PROFILE)
    job = await looked.job()
    assert (job.state, job.profile_tries, job.faults, job.moves) == ("waiting", 0, 0, 0)
    assert (job.ran_ms, job.serverless_used_ms, job.first_running_ms) == (0, 0, None)
    (row,) = await world.rows(profiles)
    assert (row.project_id, row.pull, row.rows, row.tokens) == (world.project_id, PROFILE["pull"], 64, 4096)
    view = await seen(world, looked.job_id)
    assert view.recipe is not None
    assert (view.recipe.pull, view.done_ms) == (tuple(PROFILE["pull"]), 0)  # type: ignore[arg-type]  # a list of numbers
    assert "process_exited" in await world.events(looked.job_id)
    await world.work()
    await world.meter()
    assert (await looked.job()).spent_micros > 0
    world.clock.advance(s=200)  # nobody waits for the other one any longer
    await world.decide()
    assert await purposes(world, looked.job_id) == ["profile", "train"]
    await world.check_invariants()


@pytest.mark.parametrize(
    ("exit_", "told"),
    [
        ({"exit_code": 0}, "it ended without a profile"),
        ({"signal": 9}, "the process was killed by signal 9"),
        ({"environment_error": "no wheel of torch"}, "no wheel of torch"),
        ({"exit_code": 0, "profile": PROFILE | {"pull": [math.nan, 1.0]}}, "it ended without a profile"),
        ({"exit_code": 0, "profile": PROFILE | {"pull": [0.0, 0.0]}}, "cannot be compared"),
        ({"exit_code": 1, "last_lines": "torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB"}, "exit code 1"),
    ],
    ids=["silent", "killed", "environment", "nan", "all zero", "out of memory"],
)
async def test_a_look_in_vain_costs_the_job_nothing_but_time(world: World, exit_: dict[str, Any], told: str) -> None:
    """Whatever went wrong, the job is not looked at again, goes back to the queue and trains; no fault is counted, and
    nothing is kept that cannot be compared."""
    looked = await Looked(world).begin()
    await looked.ends(**exit_)
    job = await looked.job()
    assert (job.state, job.profile_tries, job.faults, job.end_reason) == ("waiting", 1, 0, None)
    assert await world.rows(profiles) == []
    (message,) = [row.message for row in await world.rows(t.job_events) if row.kind == "process_exited"]
    assert message.startswith("could not be profiled, and is trained without: ")
    assert told in message
    view = await seen(world, looked.job_id)
    assert view.recipe is not None
    assert (view.recipe.profile_tries, view.resources.gpu_memory_bytes_min) == (1, 0)
    await world.work()
    world.clock.advance(s=200)
    await world.decide()
    assert await purposes(world, looked.job_id) == ["profile", "train"]
    await world.check_invariants()


@pytest.mark.parametrize("runs", [False, True], ids=["starting", "running"])
async def test_a_lost_machine_is_no_fault_of_a_job_that_was_looked_at(world: World, runs: bool) -> None:
    """However often machines were lost before."""
    looked = await Looked(world).begin(runs=runs)
    await world.set_job(looked.job_id, faults=3)
    async with world.database.transaction() as connection:
        now_ms = world.clock.now_ms()
        await lose_node(connection, world.ids, looked.node_id, "silent", now_ms=now_ms, fault_budget=3)
    job = await looked.job()
    assert job.state == "waiting"
    assert (job.profile_tries, job.faults) == (1, 3)
    await world.check_invariants()


async def test_cancelled_while_it_is_profiled_a_job_costs_what_it_used(world: World) -> None:
    """The bill of the machine until it is gone, and nothing after; what its agent still sends counts no more."""
    looked = await Looked(world).begin()
    async with world.database.transaction() as connection:
        await cancel_job(connection, world.ids, world.project_id, looked.job_id, now_ms=world.clock.now_ms())
    assert (await looked.job()).state == "cancelled"
    late = {"exit_code": 0, "profile": PROFILE}
    with pytest.raises(ValueError, match="not enough values"):  # no live run is there to report of
        await world.report(looked.node_id, "exited", **late)
    await world.work()
    await world.meter()
    spent = (await looked.job()).spent_micros
    assert spent > 0
    world.clock.advance(s=3600)
    await world.meter()
    assert (await looked.job()).spent_micros == spent
    assert await world.rows(profiles) == []
    await world.check_invariants()


async def test_paused_while_it_is_profiled_a_job_is_paused(world: World) -> None:
    """Its look ends as it is asked to; found in time, a profile is kept."""
    looked = await Looked(world).begin()
    async with world.database.transaction() as connection:
        await pause_job(connection, world.ids, world.project_id, looked.job_id, now_ms=world.clock.now_ms())
    await looked.ends(exit_code=0, profile=PROFILE)
    job = await looked.job()
    assert (job.state, job.profile_tries) == ("paused", 0)
    assert len(await world.rows(profiles)) == 1
    await world.check_invariants()


async def test_a_death_after_any_statement_keeps_all_or_nothing(
    world: World, database_url: str, database: Database
) -> None:
    """The profile, the end of the run and the job's way back are one."""
    looked = await Looked(world).begin()
    engine = make_engine(database_url, pool_size=2, timeout_s=60)
    try:
        for lifetime in range(3, 400, 3):
            world.database = DyingDatabase(engine, lifetime)
            try:
                await looked.ends(exit_code=0, profile=PROFILE)
                break
            except KilledError:
                world.database = database
                assert await world.rows(profiles) == []
                assert (await looked.job()).state == "running"
    finally:
        world.database = database
        await engine.dispose()
    assert lifetime > 10
    assert len(await world.rows(profiles)) == 1
    assert (await looked.job()).state == "waiting"
    await world.check_invariants()
