"""The host's clock is set an hour on or back: no healthy run ends for it, and nobody leads who should not."""

from __future__ import annotations

import pytest

from app.control.leader import Leader
from app.core.model.run import RunState
from app.db import tables as t
from tests.control.world import World

HOUR_S = 3600
jumps = pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])


async def _go_on(world: World, node_id: str, seconds: int) -> None:
    """Time passes as usual: the agent calls, and every chore has its turn."""
    for _ in range(0, seconds, 5):
        world.clock.advance(s=5)
        await world.beat(node_id)
        await world.check_heartbeats()
    await world.sweep()
    await world.meter()
    await world.decide()
    await world.work()


@jumps
async def test_a_run_outlives_a_jump_of_the_clock(world: World, jump_s: int) -> None:
    """The same run on the same machine, no fault and no new epoch: it is neither lost nor taken for silent."""
    world.settings.serverless_budget_s = 1_000_000
    await world.restart()
    job_id, node_id = await world.run_on_serverless()
    await _go_on(world, node_id, 20)
    before = await world.job(job_id)
    world.clock.advance(s=jump_s)
    await world.check_heartbeats()  # before the agent was heard again
    await world.sweep()
    await world.decide()
    assert (await world.node(node_id)).state == "ready"
    await _go_on(world, node_id, 60)
    job = await world.job(job_id)
    assert (job.state, job.epoch, job.faults) == ("running", before.epoch, 0)
    (run,) = await world.rows(t.runs)
    assert run.state == RunState.RUNNING
    assert len(world.cloud.alive()) == 1
    await world.check_invariants()


@jumps
async def test_a_run_that_is_saving_keeps_its_time_to_save(world: World, jump_s: int) -> None:
    """Asked to stop a moment before the jump, it may still upload what it saved for as long as any other."""
    job_id, node_id = await world.run_on_serverless()
    await world.check_heartbeats()
    world.clock.advance(s=301)
    await world.beat(node_id)
    await world.decide()
    assert (await world.job(job_id)).state == "checkpointing"
    world.clock.advance(s=jump_s)
    for _ in range(30):
        world.clock.advance(s=5)
        await world.beat(node_id)
        await world.check_heartbeats()
    assert (await world.job(job_id)).state == "checkpointing"
    assert await world.report(node_id, "exited", exit_code=0, saved_after_stop=True)
    job = await world.job(job_id)
    assert (job.state, job.faults) == ("waiting", 0)


@jumps
async def test_the_lead_does_not_depend_on_the_hosts_clock(world: World, jump_s: int) -> None:
    """Leases are held by the database's clock: the leader goes on, and nobody takes its place."""
    leader = world.control.context.leader
    term = leader.term
    other = Leader(world.database, holder="other", lease_s=30)
    world.clock.advance(s=jump_s)
    assert not await other.step()
    assert await leader.step()
    assert (leader.leads, leader.term) == (True, term)


@jumps
async def test_a_call_to_a_provider_is_made_once_across_a_jump(world: World, jump_s: int) -> None:
    """Leases of operations are by the database's clock too: a second worker does not take a call over early."""
    await world.submit()
    await world.decide()
    await world.work()
    world.clock.advance(s=jump_s)
    await world.work()
    assert len(world.cloud.alive()) == 1
    assert len(await world.rows(t.nodes)) == 1
