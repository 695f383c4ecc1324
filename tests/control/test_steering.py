"""Pausing, resuming, changing and capping jobs while the control loop and agents go on around them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allpass.wire.controls import JobUpdate
from app.control.enact import enact
from app.core.model.job import PauseReason
from app.core.model.money import Money
from app.core.model.plan import Start
from app.db import tables as t
from app.db.jobs.reads import find_job
from app.errors import Conflict
from app.services.jobs.cancel_job import cancel_job
from app.services.jobs.pause_job import pause_job
from app.services.jobs.resume_job import resume_job
from app.services.jobs.update_job import update_job
from app.services.reading.explain_job import explain_job
from tests.control.world import World

SERVERLESS_MICROS_PER_S = 2_100_000 / 3600


async def pause(world: World, job_id: str) -> None:
    async with world.database.transaction() as connection:
        await pause_job(connection, world.ids, world.project_id, job_id, now_ms=world.clock.now_ms())


async def resume(world: World, job_id: str) -> None:
    async with world.database.transaction() as connection:
        await resume_job(connection, world.project_id, job_id, now_ms=world.clock.now_ms())


async def change(world: World, job_id: str, **fields: object) -> None:
    request = JobUpdate.model_validate(fields)
    async with world.database.transaction() as connection:
        now_ms = world.clock.now_ms()
        await update_job(connection, world.settings, world.project_id, job_id, request, now_ms=now_ms)


async def saved(world: World, job_id: str, node_id: str, step: int) -> None:
    """The agent says that the process saved and left."""
    await world.set_job(job_id, checkpoint_step=step)
    await world.report(node_id, "exited", exit_code=75, saved_after_stop=True)


async def test_a_running_job_saves_pauses_costs_nothing_and_goes_on(world: World) -> None:
    """Its machine is given back while it is paused; resumed, it has a new run; a pause is no move and no fault."""
    job_id, node_id = await world.run_on_serverless()
    await pause(world, job_id)
    job = await world.job(job_id)
    assert (job.state, job.pause_reason) == ("checkpointing", "user")
    (run,) = await world.rows(t.runs)
    assert (run.state, run.stop_mode, run.stop_asked_ms) == ("stopping", "checkpoint", world.clock.now_ms())
    await world.decide()
    await saved(world, job_id, node_id, 40)
    job = await world.job(job_id)
    assert (job.state, job.pause_reason, job.moves, job.faults) == ("paused", "user", 0, 0)
    assert job.wait_reason == "paused by its owner: goes on when it is resumed"
    assert (await world.rows(t.runs))[0].end_reason == "paused"
    await world.decide()
    await world.work()
    assert world.cloud.alive() == []
    assert len(await world.rows(t.nodes)) == 1

    world.clock.advance(s=1000)
    await resume(world, job_id)
    job = await world.job(job_id)
    assert (job.state, job.pause_reason, job.wait_reason) == ("waiting", None, None)
    await world.decide()
    await world.work()
    again = await world.node_of(job_id)
    await world.boot(again)
    await world.report(again, "running")
    await world.report(again, "exited", exit_code=0)
    assert (await world.job(job_id)).state == "succeeded"
    await world.check_invariants()


async def test_a_job_that_waits_is_paused_at_once_and_a_machine_on_its_way_is_given_back(world: World) -> None:
    """A job that never ran is queued again when it is resumed."""
    world.cloud.on_offer = world.cloud.on_offer[1:]
    job_id = await world.submit()
    await world.decide()
    await world.work()
    await world.boot((await world.newest_node()).id)
    await pause(world, job_id)
    assert (await world.job(job_id)).state == "paused"
    await world.decide()
    await world.work()
    assert world.cloud.alive() == []
    await resume(world, job_id)
    assert (await world.job(job_id)).state == "queued"
    assert await world.events(job_id) == ["node_rented", "paused", "resumed"]


async def test_a_start_is_called_off_when_its_job_is_paused(world: World) -> None:
    """Nothing has run, so there is nothing to save: the machine is ended and a late report changes nothing."""
    job_id = await world.submit()
    await world.decide()
    await world.work()
    node_id = await world.node_of(job_id)
    await world.boot(node_id)
    (held,) = await world.rows(t.run_jobs)
    await pause(world, job_id)
    job = await world.job(job_id)
    assert (job.state, job.pause_reason, job.epoch) == ("paused", "user", held.epoch + 1)
    await world.work()
    assert world.cloud.alive() == []
    await resume(world, job_id)
    assert (await world.job(job_id)).state == "queued"
    await world.check_invariants()


async def test_pausing_a_job_that_is_being_moved_keeps_it_from_going_on(world: World) -> None:
    """It saves for the move already: when it has left, it is paused, and nothing is rented for it."""
    job_id, node_id = await world.run_on_serverless()
    world.clock.advance(s=301)
    await world.beat(node_id)
    await world.set_job(job_id, serverless_used_ms=0)
    world.cloud.on_offer[1] = replace(world.cloud.on_offer[1], price_per_hour=Money.usd("1"))
    await world.decide()
    assert (await world.job(job_id)).state == "checkpointing"
    nodes = len(await world.rows(t.nodes))
    await pause(world, job_id)
    await pause(world, job_id)
    assert (await world.events(job_id)).count("pause_asked") == 1
    await world.decide()
    await saved(world, job_id, node_id, 40)
    assert (await world.job(job_id)).state == "paused"
    await world.decide()
    assert len(await world.rows(t.nodes)) == nodes


async def test_a_pause_that_is_taken_back_in_time_does_not_happen(world: World) -> None:
    """Resumed while it saves, the job waits for a place as soon as it has left."""
    job_id, node_id = await world.run_on_serverless()
    await pause(world, job_id)
    await resume(world, job_id)
    assert (await world.job(job_id)).pause_reason is None
    await saved(world, job_id, node_id, 40)
    assert (await world.job(job_id)).state == "waiting"


async def test_a_job_whose_machine_dies_while_it_saves_is_paused_all_the_same(world: World) -> None:
    """With the fault counted, from its last checkpoint."""
    job_id, _ = await world.run_on_serverless()
    await pause(world, job_id)
    for _ in range(140):
        world.clock.advance(s=15)
        await world.check_heartbeats()
    job = await world.job(job_id)
    assert (job.state, job.pause_reason) == ("paused", "user")
    await world.check_invariants()


async def test_finished_work_is_never_paused(world: World) -> None:
    """A process that was at its end when it was asked leaves a succeeded job without a pause."""
    job_id, node_id = await world.run_on_serverless()
    await pause(world, job_id)
    await world.report(node_id, "exited", exit_code=0)
    job = await world.job(job_id)
    assert (job.state, job.end_reason, job.pause_reason) == ("succeeded", "finished", None)
    for contradiction in (pause, resume):
        with pytest.raises(Conflict, match="has succeeded"):
            await contradiction(world, job_id)


@pytest.mark.parametrize("asks", ["pause", "cap", "duration"])
async def test_a_job_that_saves_can_be_cancelled_at_once(world: World, asks: str) -> None:
    """Whatever it saves for: the run is over and fenced, and what it still sends changes nothing."""
    job_id, node_id = await world.run_on_serverless()
    world.clock.advance(s=60)
    await world.beat(node_id)
    if asks == "pause":
        await pause(world, job_id)
    else:
        columns = {"max_cost_micros": 1} if asks == "cap" else {"max_duration_ms": 1}
        await world.set_job(job_id, **columns)
        await world.meter()
    assert (await world.job(job_id)).state == "checkpointing"
    async with world.database.transaction() as connection:
        await cancel_job(connection, world.ids, world.project_id, job_id, now_ms=world.clock.now_ms())
    job = await world.job(job_id)
    assert (job.state, job.end_reason, job.pause_reason) == ("cancelled", "cancelled", None)
    (run,) = await world.rows(t.runs)
    assert (run.state, run.end_reason) == ("ended", "cancelled")
    await world.meter()
    await world.work()
    assert world.cloud.alive() == []
    assert (await world.job(job_id)).state == "cancelled"
    await world.check_invariants()


async def test_a_cost_cap_is_raised_and_then_the_job_is_resumed(world: World) -> None:
    """Resuming below the limit is refused with both figures; raising it alone leaves the job paused."""
    job_id, node_id = await world.run_on_serverless()
    await change(world, job_id, max_cost_usd=0.05)
    world.clock.advance(s=90)
    await world.beat(node_id)
    await world.meter()
    await saved(world, job_id, node_id, 40)
    job = await world.job(job_id)
    assert (job.state, job.pause_reason) == ("paused", PauseReason.COST_CAP)
    assert (await world.rows(t.runs))[0].end_reason == "capped"
    with pytest.raises(Conflict, match=r"has cost \$0\.0525 of at most \$0\.05: raise max_cost_usd above") as refused:
        await resume(world, job_id)
    assert refused.value.param == "max_cost_usd"
    await change(world, job_id, max_cost_usd=1)
    job = await world.job(job_id)
    assert (job.state, job.wait_reason) == (
        "paused",
        "was paused by its cost limit; has cost $0.0525 of at most $1.00 now: goes on when it is resumed",
    )
    await resume(world, job_id)
    assert (await world.job(job_id)).state == "waiting"
    await world.meter()
    assert (await world.job(job_id)).state == "waiting"


async def test_a_raised_cap_takes_a_pending_pause_back(world: World) -> None:
    """The job had been asked to save; it saves, leaves and goes on."""
    job_id, node_id = await world.run_on_serverless()
    await world.set_job(job_id, max_cost_micros=1)
    world.clock.advance(s=5)
    await world.beat(node_id)
    await world.meter()
    assert (await world.job(job_id)).pause_reason == "cost_cap"
    await change(world, job_id, max_cost_usd=None)
    await saved(world, job_id, node_id, 40)
    assert (await world.job(job_id)).state == "waiting"


@pytest.mark.parametrize("cap_micros", [1, 4_000, 50_000, 123_456, 350_000])
async def test_spending_passes_a_cap_by_at_most_one_tick(world: World, cap_micros: int) -> None:
    """The meter is read every so often: what a job has cost when it is paused is below its cap plus one interval."""
    job_id, node_id = await world.run_on_serverless()
    await world.set_job(job_id, max_cost_micros=cap_micros)
    tick_s = world.settings.meter_s
    for _ in range(200):
        world.clock.advance(s=tick_s)
        await world.beat(node_id)
        await world.meter()
        if (await world.job(job_id)).state == "checkpointing":
            break
    await saved(world, job_id, node_id, 1)
    await world.work()
    await world.meter()
    job = await world.job(job_id)
    assert job.state == "paused"
    assert cap_micros <= job.spent_micros <= cap_micros + SERVERLESS_MICROS_PER_S * tick_s + 1
    assert world.cloud.alive() == []
    assert await world.ledger_sum() == world.cloud.bill().micros
    await world.decide()
    await world.work()
    assert await world.ledger_sum() == world.cloud.bill().micros == job.spent_micros


async def test_a_job_that_takes_longer_than_it_may_saves_and_is_cancelled(world: World) -> None:
    """Counted from when its code first ran, whether it runs or waits; what it saved is kept."""
    running, node_id = await world.run_on_serverless()
    waiting = await world.submit(state="waiting", first_running_ms=world.clock.now_ms(), max_duration_ms=60_000)
    await world.set_job(running, max_duration_ms=60_000)
    world.clock.advance(s=59)
    await world.beat(node_id)
    await world.meter()
    assert (await world.job(running)).state == "running"
    world.clock.advance(s=1)
    await world.meter()
    assert (await world.job(running)).state == "checkpointing"
    await world.meter()
    await saved(world, running, node_id, 77)
    for job_id in (running, waiting):
        job = await world.job(job_id)
        assert (job.state, job.end_reason) == ("cancelled", "max_duration")
        assert job.end_message == "took longer than its max_duration of 60 s"
        assert job.ended_ms == world.clock.now_ms()
    assert (await world.job(running)).checkpoint_step == 77
    await world.work()
    assert world.cloud.alive() == []
    await world.check_invariants()


async def test_more_time_given_while_a_job_saves_lets_it_go_on(world: World) -> None:
    """The limit is looked at again when the run has ended."""
    job_id, node_id = await world.run_on_serverless()
    await world.set_job(job_id, max_duration_ms=60_000)
    world.clock.advance(s=61)
    await world.beat(node_id)
    await world.meter()
    await change(world, job_id, max_duration_s=3600)
    await saved(world, job_id, node_id, 40)
    assert (await world.job(job_id)).state == "waiting"


async def test_a_paused_job_does_not_run_out_of_time_but_is_not_resumed_without_any(world: World) -> None:
    """It would be stopped again at once, so the limit has to be raised first."""
    job_id, node_id = await world.run_on_serverless()
    await world.set_job(job_id, max_duration_ms=60_000)
    await pause(world, job_id)
    await saved(world, job_id, node_id, 40)
    world.clock.advance(s=3600)
    await world.meter()
    assert (await world.job(job_id)).state == "paused"
    with pytest.raises(Conflict, match="first ran 3600 s ago and has a max_duration of 60 s"):
        await resume(world, job_id)
    await change(world, job_id, max_duration_s=None)
    await resume(world, job_id)
    assert (await world.job(job_id)).state == "waiting"


async def test_a_change_makes_what_was_decided_before_it_stale(world: World) -> None:
    """A start that was decided under the old limit is dropped; the next decision says why there is none."""
    job_id = await world.submit()
    before = (await world.job(job_id)).row_version
    start = Start(job_id, world.cloud.on_offer[0], "because", ((job_id, before),))
    await change(world, job_id, soft_deadline="2h", max_cost_usd=0.04)
    context = world.control.context
    async with world.database.transaction() as connection:
        await context.leader.guard(connection)
        (dropped,) = await enact(connection, context, [start], now_ms=world.clock.now_ms())
    assert "has moved on" in dropped.why
    world.cloud.on_offer = [replace(world.cloud.on_offer[1], price_per_hour=Money.usd("360"))]
    await world.decide()
    job = await world.job(job_id)
    assert job.state == "queued"
    assert "has $0.04 left of its max_cost of $0.04, and the first billing unit" in job.wait_reason


async def test_the_explanation_follows_the_job(world: World) -> None:
    """From its submission over start, move and pause to its end, in terms of what is on record."""
    job_id = await world.submit(total_steps=1000)

    async def told() -> tuple[str, str, str]:
        async with world.database.transaction() as connection:
            job = await find_job(connection, world.project_id, job_id)
            assert job is not None
            said = await explain_job(connection, world.settings, job, now_ms=world.clock.now_ms())
        assert said.because
        return said.headline, *("\n".join(line.text for line in part) for part in (said.because, said.next))

    assert "no decision has been recorded since" in (await told())[1]
    await world.decide()
    await world.work()
    node_id = await world.node_of(job_id)
    headline, because, _ = await told()
    assert headline.startswith("starting")
    assert "starts on cloud A100 at $2.10/h, the only one of the serverless offers that fit" in because
    await world.boot(node_id)
    await world.report(node_id, "running")
    world.clock.advance(s=100)
    headline, _, upcoming = await told()
    assert headline == "running for 100 s on cloud A100 at $2.10/h (serverless)"
    assert "has run on serverless for 100 s of at most 300 s: in 200 s it moves" in upcoming
    world.clock.advance(s=201)
    await world.beat(node_id)
    await world.decide()
    headline, because, upcoming = await told()
    assert headline.startswith("saving a checkpoint")
    assert "has run on serverless for 301 s, budget F is 300 s" in because
    assert "goes on from there as soon as it has a place" in upcoming
    await saved(world, job_id, node_id, 640)
    await world.decide()
    world.clock.advance(s=10)
    headline, because, upcoming = await told()
    assert headline == "waiting for 10 s"
    assert "it left cloud A100 10 s ago after 301 s of running, demoted: saved and left when asked to stop" in because
    assert "its newest checkpoint is of step 640" in because
    assert "cloud A100 at $0.72/h (marketplace) was rented for it 10 s ago and is requested" in because
    assert "goes on at step 640 there when the machine is ready, expected in 20 s" in upcoming
    await pause(world, job_id)
    headline, because, upcoming = await told()
    assert (headline, upcoming) == ("paused for 0 s", "goes on at step 640 when it is resumed")
    assert because.startswith("paused by its owner")
    async with world.database.transaction() as connection:
        await cancel_job(connection, world.ids, world.project_id, job_id, now_ms=world.clock.now_ms())
    assert await told() == ("cancelled 311 s after it was submitted", "cancelled by its owner", "")
