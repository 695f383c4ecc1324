"""The policy `allpass` in the live loop: predictions from history and steps, and a move that is prepared while the
job trains."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.policies import policy_named
from app.db import tables as t
from app.db.decisions.snapshots import freeze, read_snapshot
from app.db.learning.run_history import run_times
from tests.control.world import World


@pytest.fixture
def allpass(world: World) -> World:
    """The same world, decided upon by `allpass`."""
    world.control.loop._policy = policy_named("allpass")
    return world


async def seen_job(world: World, job_id: str) -> Any:
    async with world.database.transaction() as connection:
        await freeze(connection)
        snapshot = await read_snapshot(connection, world.clock.now_ms(), world.control.context.traits(), 10**9)
    return {job.job_id: job for job in snapshot.jobs}[job_id]


async def finish_one(world: World, seconds: int, app: tuple[str, str] | None = None) -> str:
    """A job of the app that succeeds after so long on serverless."""
    job_id, serverless = await world.run_on_serverless()
    world.clock.advance(s=seconds)
    await world.report(serverless, "exited", exit_code=0)
    assert (await world.job(job_id)).state == "succeeded"
    return job_id


async def _to_its_node(world: World) -> tuple[str, str, str]:
    """A job that trains on serverless, and the node that was rented for it and is ready: job, and both nodes."""
    job_id, serverless = await world.run_on_serverless()
    world.clock.advance(s=840.001)
    await world.beat(serverless)
    await world.decide()
    assert (await world.job(job_id)).state == "running"
    await world.work()
    rented = (await world.newest_node()).id
    assert rented != serverless
    world.clock.advance(s=30)
    await world.boot(rented)
    await world.beat(serverless)
    await world.decide()
    return job_id, serverless, rented


async def test_a_long_job_is_moved_while_it_trains(allpass: World) -> None:
    """Its node is rented while it trains on; when the node is ready it prepares, then the job saves and goes on there.
    As nothing is known of its run time it is taken to be half done, and the move's 84 s are to be a tenth of the rest
    at most: 840 s."""
    job_id, serverless, rented = await _to_its_node(allpass)
    (move,) = await allpass.rows(t.moves)
    assert ((await allpass.job(job_id)).state, move.state) == ("running", "preparing")
    assert allpass.cloud.name in move.reason
    await allpass.beat(serverless)
    decision = await allpass.decide()
    assert decision.plan.actions == ()  # one move at a time, and nothing that takes its node away
    await allpass.report(rented, "prepared")
    await allpass.report(serverless, "exited", exit_code=0, saved_after_stop=True)
    assert (await allpass.job(job_id)).state == "running"
    await allpass.report(rented, "running")
    await allpass.report(rented, "exited", exit_code=0)
    await allpass.decide()
    await allpass.work()
    assert (await allpass.job(job_id)).state == "succeeded"
    assert allpass.cloud.alive() == []
    assert await allpass.ledger_sum() == allpass.cloud.bill().micros > 0
    await allpass.check_invariants()


async def test_a_job_whose_target_failed_stays_for_a_while(allpass: World) -> None:
    """The node is given back, nothing is rented for the job, and it is looked at again when its back-off is over."""
    _, serverless, rented = await _to_its_node(allpass)
    await allpass.report(rented, "exited", environment_error="no space left")
    decision = await allpass.decide()
    assert [action.kind for action in decision.plan.actions] == ["release"]
    (move,) = await allpass.rows(t.moves)
    assert decision.plan.wake_at_ms <= move.not_before_ms
    allpass.clock.ms = move.not_before_ms
    await allpass.beat(serverless)
    decision = await allpass.decide()
    assert [action.kind for action in decision.plan.actions] == ["provision"]


async def test_where_moves_stop_and_go_a_job_saves_first(allpass: World) -> None:
    """It leaves when its node is ready, and goes on there when it has saved."""
    allpass.settings.moves = "stop_and_go"
    await allpass.restart()
    allpass.control.loop._policy = policy_named("allpass")
    job_id, serverless, rented = await _to_its_node(allpass)
    assert (await allpass.job(job_id)).state == "checkpointing"
    await allpass.report(serverless, "exited", exit_code=0, saved_after_stop=True)
    await allpass.decide()
    assert await allpass.node_of(job_id) == rented
    await allpass.report(rented, "running")
    await allpass.report(rented, "exited", exit_code=0)
    await allpass.decide()
    await allpass.work()
    assert (await allpass.job(job_id)).state == "succeeded"
    assert allpass.cloud.alive() == []
    assert await allpass.ledger_sum() == allpass.cloud.bill().micros > 0
    await allpass.check_invariants()


async def test_what_jobs_of_an_app_took_predicts_the_next(allpass: World) -> None:
    """Before any has ended nobody knows; then the mean of those that did, the newest counting more."""
    first = await allpass.submit()
    assert (await seen_job(allpass, first)).total_run_ms is None
    await allpass.set_job(first, state="cancelled")
    await finish_one(allpass, 100)
    await finish_one(allpass, 200)
    async with allpass.database.transaction() as connection:
        (times,) = (await run_times(connection)).values()
    assert times.run_ms == pytest.approx(100_000 + 0.3 * 100_000, abs=2_000)
    last = await allpass.submit()
    assert (await seen_job(allpass, last)).total_run_ms == round(times.run_ms)


async def test_a_job_that_failed_predicts_nothing(allpass: World) -> None:
    """Only jobs that ran to their end count."""
    job_id, serverless = await allpass.run_on_serverless()
    allpass.clock.advance(s=100)
    await allpass.report(serverless, "exited", exit_code=1)
    assert (await allpass.job(job_id)).state == "failed"
    assert await allpass.rows(t.run_history) == []


async def test_code_time_of_every_run_is_added_up(allpass: World) -> None:
    """What a job has run so far is known whatever tier it ran on."""
    job_id, serverless = await allpass.run_on_serverless()
    allpass.clock.advance(s=70)
    await allpass.report(serverless, "exited", signal=9)
    job = await allpass.job(job_id)
    assert (job.ran_ms, job.serverless_used_ms) == (70_000, 70_000)
    assert (await seen_job(allpass, job_id)).done_ms == 70_000


async def test_every_decision_tells_its_signals(allpass: World) -> None:
    """Pressure, F, demand and capacity are stored with each tick."""
    await allpass.run_on_serverless()
    (*_, tick) = await allpass.rows(t.ticks)
    assert {"p", "F_s", "D_gpu_s", "C", "jobs_waiting"} <= {name for name, _ in tick.plan["signals"]}
    assert tick.policy == "allpass"
