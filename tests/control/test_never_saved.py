"""A job whose code never saves, live: it stays where it is, its owner hears what it would lose before it does, and a
beginning from step 0 is an alarm."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy import update

from app.core.billing import serverless_equivalent
from app.core.lifecycle import Outcome
from app.core.model.job import JobState, PauseReason
from app.core.model.node import Tier
from app.core.model.run import RunEnd
from app.db import tables as t
from app.db.engine import Database
from app.db.jobs.reads import find_job
from app.db.jobs.steering import lock_standing
from app.db.reading.job_records import run_heads
from app.db.runs.live_runs import live_run_of_job
from app.errors import Conflict
from app.services.jobs.hold_job import hold_job
from app.services.jobs.pause_job import pause_job
from app.services.reading.read_timeline import read_timeline
from app.services.runs.end_run import end_run
from tests.conftest import CountingIds, ManualClock
from tests.control.world import World, make_settings

_DAY_S = 86_400


@pytest.fixture
async def world(database: Database, database_url: str, clock: ManualClock, ids: CountingIds) -> World:
    world = World(database, make_settings(database_url), clock, ids)
    world.saves_when_asked = False
    await world.open()
    return world


async def told(world: World, job_id: str, kind: str) -> list[str]:
    return [row.message for row in await world.rows(t.job_events) if row.job_id == job_id and row.kind == kind]


async def loses_its_machine(world: World, job_id: str) -> None:
    lost = Outcome(RunEnd.NODE_LOST, JobState.WAITING, None, True, "its agent is silent")
    async with world.database.transaction() as connection:
        run_id = await live_run_of_job(connection, job_id)
        assert run_id is not None
        assert await end_run(connection, world.ids, run_id, lost, now_ms=world.clock.now_ms())


async def test_it_is_not_moved_however_long_it_runs(world: World) -> None:
    """Hours on serverless, a cheaper machine to be had: moved, it would begin again at step 0 and be paid for twice."""
    job_id, node_id = await world.run_on_serverless()
    for _ in range(6):
        world.clock.advance(s=1_800)
        await world.beat(node_id)
        await world.decide()
        await world.work()
    assert (await world.job(job_id)).state == "running"
    assert await world.node_of(job_id) == node_id
    assert [row.tier for row in await world.rows(t.nodes)] == ["serverless"]  # nothing was rented for a move either


async def test_a_pause_says_what_it_costs_and_asks(world: World) -> None:
    """In steps, or in time where the code reports none; a pause that is wanted all the same says so in its events."""
    job_id, _ = await world.run_on_serverless()
    project_id = (await world.job(job_id)).project_id
    world.clock.advance(s=600)

    async def pause(*, lose_steps: bool) -> None:
        async with world.database.transaction() as connection:
            now_ms = world.clock.now_ms()
            await pause_job(connection, world.ids, project_id, job_id, lose_steps=lose_steps, now_ms=now_ms)

    for steps, lost in ((0, "10 min of running"), (1, "1 step"), (412, "412 steps")):
        await world.set_job(job_id, step=steps)
        with pytest.raises(Conflict) as asked:
            await pause(lose_steps=False)
        assert asked.value.error_code == "steps_would_be_lost"
        assert f"would lose {lost}:" in asked.value.message
        assert "allpass.training" in asked.value.message
    await pause(lose_steps=True)
    (stopping,) = await told(world, job_id, "run_stopping")
    assert stopping.endswith("412 steps since it began will be lost")


async def test_a_cost_cap_does_not_pretend_and_is_told_before(world: World) -> None:
    """At nine tenths of it, once; and once more when it was raised."""
    job_id, node_id = await world.run_on_serverless()
    await world.set_job(job_id, step=40, max_cost_micros=10_000_000_000, spent_micros=9_000_000_000)
    for _ in range(2):
        await world.meter()
    (first,) = await told(world, job_id, "limit_near")
    assert "40 steps since it began will be lost" in first
    await world.set_job(job_id, max_cost_micros=20_000_000_000, spent_micros=19_000_000_000)
    await world.meter()
    assert len(await told(world, job_id, "limit_near")) == 2
    await world.set_job(job_id, spent_micros=20_000_000_000)
    await world.meter()
    (stopping,) = await told(world, job_id, "run_stopping")
    assert "saves at the next step" not in stopping
    assert "40 steps since it began will be lost" in stopping
    assert (await world.job(job_id)).state == "checkpointing"
    await world.beat(node_id)


async def test_a_job_that_saves_is_not_warned_of_its_cap(world: World) -> None:
    """It loses nothing there."""
    world.saves_when_asked = True
    job_id, _ = await world.run_on_serverless()
    await world.set_job(job_id, step=40, max_cost_micros=10_000_000, spent_micros=9_500_000)
    await world.meter()
    assert await told(world, job_id, "limit_near") == []


async def test_its_end_by_max_duration_is_told_before(world: World) -> None:
    """At nine tenths of the time."""
    job_id, _ = await world.run_on_serverless()
    await world.set_job(job_id, step=40, max_duration_ms=1_000_000)
    world.clock.advance(s=850)
    await world.meter()
    assert await told(world, job_id, "limit_near") == []
    world.clock.advance(s=60)
    await world.meter()
    (near,) = await told(world, job_id, "limit_near")
    assert near.startswith("is cancelled when its max_duration of 1000 s is over; ")


async def test_a_beginning_from_step_0_is_an_alarm(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Steps that were done and paid for are done again: the owner and the operator are told, with the way out."""
    job_id, node_id = await world.run_on_serverless()
    await world.set_job(job_id, step=412)
    world.clock.advance(s=40)
    await loses_its_machine(world, job_id)
    assert await told(world, job_id, "steps_lost") == ["412 steps since it began are lost"]
    assert await told(world, job_id, "began_again") == []
    await world.work()
    await world.decide()
    await world.work()
    second = await world.node_of(job_id)
    assert second != node_id
    await world.boot(second)
    with caplog.at_level(logging.ERROR):
        await world.report(second, "running")
    (again,) = await told(world, job_id, "began_again")
    assert "it has done 412 steps in 40 s so far" in again
    assert "allpass.training" in again
    assert any("ALARM" in record.message and job_id in record.message for record in caplog.records)
    world.clock.advance(s=100)
    async with world.database.transaction() as connection:
        row = await find_job(connection, world.project_id, job_id)
        assert row is not None
        timeline = await read_timeline(connection, row, now_ms=world.clock.now_ms())
        heads = await run_heads(connection, job_id)
    assert (timeline.running_ms, timeline.repeated_ms) == (140_000, 40_000)
    first = timeline.stays[0][0]
    assert first.running_ms is not None
    once_ms = 100_000 + first.running_ms - first.from_ms
    assert timeline.all_serverless == serverless_equivalent(first.billing, first.price_per_hour, once_ms)
    assert [(one.number, one.first_step) for one in heads.values()] == [(1, 0), (2, 0)]


async def test_a_job_that_ends_at_once_and_begins_again_alarms_nobody(world: World) -> None:
    """It had done nothing yet."""
    job_id, _ = await world.run_on_serverless()
    world.clock.advance(s=2)
    await loses_its_machine(world, job_id)
    await world.work()
    await world.decide()
    await world.work()
    second = await world.node_of(job_id)
    await world.boot(second)
    await world.report(second, "running")
    assert await told(world, job_id, "began_again") == []


async def test_it_is_told_that_its_machine_ends_and_has_all_of_that_time(world: World) -> None:
    """Nobody asks it to save and leave: what is left of the machine's life may be enough to get done."""
    world.cloud.max_lifetime_ms = {Tier.SERVERLESS: _DAY_S * 1000}
    world.cloud.on_offer = world.cloud.on_offer[:1]
    job_id, node_id = await world.run_on_serverless()
    for left_s in (800, 300, 30):
        world.clock.advance(
            s=_DAY_S - left_s - (world.clock.now_ms() - (await world.node(node_id)).requested_ms) // 1000
        )
        await world.beat(node_id)
        await world.sweep()
        await world.leave_in_time()
        assert (await world.job(job_id)).state == "running"
    (ends,) = await told(world, job_id, "machine_ends")
    assert "cloud ends this machine in 13 min" in ends
    assert "has never saved" in ends


async def test_its_first_checkpoint_sets_it_free(world: World) -> None:
    """It may be moved from then on, with the loss of what it has done since."""
    job_id, _ = await world.run_on_serverless()
    async with world.database.transaction() as connection:
        await connection.execute(update(t.jobs).where(t.jobs.c.id == job_id).values(step=50, checkpoint_step=40))
        held = await lock_standing(connection, job_id)
        assert held is not None
        await hold_job(connection, world.ids, held, PauseReason.COST_CAP, now_ms=world.clock.now_ms())
    (stopping,) = await told(world, job_id, "run_stopping")
    assert stopping.endswith("10 steps since the checkpoint of step 40 will be lost")


async def test_an_app_whose_jobs_never_saved_begins_on_a_rented_node_next_time(world: World) -> None:
    """From serverless the next one could not leave. Once one of its jobs has saved, they begin as any other."""
    for saves, tier in ((False, "serverless"), (True, "marketplace"), (True, "serverless")):
        before = {row.id for row in await world.rows(t.nodes)}
        job_id = await world.submit(start="auto", kind="batch")
        await world.decide()
        await world.work()
        (node_id,) = {row.id for row in await world.rows(t.nodes)} - before
        assert (await world.node(node_id)).tier == tier
        await world.boot(node_id)
        await world.decide()
        world.saves_when_asked = saves
        await world.report(node_id, "running")
        world.clock.advance(s=7_200)
        await world.report(node_id, "exited", exit_code=0)
        assert (await world.job(job_id)).state == "succeeded"
        await world.decide()
        await world.work()
        world.clock.advance(s=3_600)
        await world.sweep()
        await world.decide()
        await world.work()
