"""Silence: a machine we cannot reach is not a dead machine, until it has been silent for long enough."""

from __future__ import annotations

import pytest

from app.core.model.node import NodeState
from app.db import tables as t
from app.db.transitions import Event, move_node
from app.errors import Transient
from tests.control.world import World


async def _wait(world: World, seconds: int, *, step_s: int = 5) -> None:
    """Time passes, with the chore running at its interval."""
    for _ in range(0, seconds, step_s):
        world.clock.advance(s=step_s)
        await world.check_heartbeats()


async def test_a_silent_node_is_unreachable_then_lost_and_its_job_goes_on_elsewhere(world: World) -> None:
    """The provider says it runs: the job waits for `lost_after_s` more before it is taken away, epoch first."""
    job_id, node_id = await world.run_on_serverless()
    await world.check_heartbeats()
    epoch = (await world.job(job_id)).epoch
    await _wait(world, 35)
    assert (await world.node(node_id)).state == "unreachable"
    assert (await world.job(job_id)).state == "running"
    await _wait(world, 110)
    assert (await world.job(job_id)).state == "running"
    await _wait(world, 10)
    job = await world.job(job_id)
    assert (job.state, job.faults) == ("waiting", 1)
    assert job.epoch > epoch
    await world.work()
    assert world.cloud.alive() == []
    assert await world.ledger_sum() == world.cloud.bill().micros


async def test_a_silent_node_that_the_provider_calls_gone_is_lost_at_once(world: World) -> None:
    """No need to wait for what cannot come back."""
    job_id, node_id = await world.run_on_serverless()
    await world.check_heartbeats()
    world.cloud.die(node_id)
    await _wait(world, 40)
    assert (await world.job(job_id)).state == "waiting"


async def test_a_node_that_is_taken_away_before_its_agent_can_say_so_is_lost(world: World) -> None:
    """Told of its end, silent from then on, and still listed: the job goes on elsewhere all the same."""
    job_id, node_id = await world.run_on_serverless()
    await world.check_heartbeats()
    now_ms = world.clock.now_ms()
    async with world.database.transaction() as connection:
        leaves = Event("node_draining", "its machine is being taken away")
        await move_node(connection, node_id, NodeState.DRAINING, leaves, now_ms=now_ms)
    await _wait(world, 25)
    await world.beat(node_id)
    await _wait(world, 145)
    assert (await world.job(job_id)).state == "running"
    await _wait(world, 10)
    assert (await world.job(job_id)).state == "waiting"
    await world.work()
    assert world.cloud.alive() == []
    assert (await world.node(node_id)).state == "terminated"


async def test_a_node_that_calls_again_is_ready_again(world: World) -> None:
    """A heartbeat after the silence ends it; the job never noticed."""
    job_id, node_id = await world.run_on_serverless()
    await world.check_heartbeats()
    await _wait(world, 60)
    await world.beat(node_id)
    await world.check_heartbeats()
    node = await world.node(node_id)
    assert (node.state, node.unreachable_since_ms) == ("ready", None)
    assert (await world.job(job_id)).state == "running"
    assert "node_back" in [row.kind for row in await world.rows(t.node_events)]


async def test_an_outage_of_our_own_network_never_marks_a_node_dead(world: World) -> None:
    """Neither agent nor provider is heard, for hours: nothing is concluded. Once the provider is heard again, the
    agent has as much time to call as any silent one; then its node is lost."""
    job_id, node_id = await world.run_on_serverless()
    await world.check_heartbeats()
    world.cloud.get_error = world.cloud.listing_error = Transient("no route")
    for _ in range(6):
        await _wait(world, 3_600, step_s=60)
        await world.sweep()
        assert (await world.job(job_id)).state == "running"
    world.cloud.get_error = world.cloud.listing_error = None
    await _wait(world, 140, step_s=10)
    assert (await world.job(job_id)).state == "running"
    await _wait(world, 60, step_s=10)
    assert (await world.job(job_id)).state == "waiting"
    assert (await world.node(node_id)).state == "terminating"


async def test_a_node_that_boots_while_we_are_cut_off_is_not_given_up(world: World) -> None:
    """Its call home could not reach us; when the provider is heard again it has a moment more, and calls."""
    job_id = await world.submit()
    await world.decide()
    await world.work()
    node_id = await world.node_of(job_id)
    await world.check_heartbeats()
    world.cloud.get_error = world.cloud.listing_error = Transient("no route")
    await _wait(world, 600, step_s=60)
    assert (await world.node(node_id)).state == "booting"
    world.cloud.get_error = world.cloud.listing_error = None
    await _wait(world, 20)
    await world.boot(node_id)
    await world.report(node_id, "running")
    assert (await world.job(job_id)).state == "running"


async def test_a_silent_node_of_a_provider_that_fails_is_lost_in_the_end_while_others_are_heard(world: World) -> None:
    """Another agent speaks, so it is not our network: the node has five times the usual patience, not for ever."""
    job_id, _node_id = await world.run_on_serverless()
    _other_id, heard = await world.run_on_serverless()
    await world.check_heartbeats()
    world.cloud.get_error = Transient("no route")
    for _ in range(20):
        await world.beat(heard)
        await _wait(world, 20, step_s=20)
    assert (await world.job(job_id)).state == "running"
    for _ in range(15):
        await world.beat(heard)
        await _wait(world, 20, step_s=20)
    assert (await world.job(job_id)).state == "waiting"


async def test_silence_is_counted_anew_after_the_control_plane_was_away(world: World) -> None:
    """An hour without us is an hour in which nobody could be heard."""
    job_id, node_id = await world.run_on_serverless()
    await world.check_heartbeats()
    world.clock.advance(s=3600)
    world.settings.serverless_budget_s = 1_000_000
    await world.restart()
    await world.decide()
    await world.check_heartbeats()
    await _wait(world, 25)
    assert (await world.node(node_id)).state == "ready"
    await _wait(world, 10)
    assert (await world.node(node_id)).state == "unreachable"
    assert (await world.job(job_id)).state == "running"


async def test_when_all_nodes_fall_silent_together_the_fault_is_more_likely_ours(world: World) -> None:
    """The API may be down while this process is not: jobs on machines that run are left alone for longer."""
    jobs = [(await world.run_on_serverless())[0] for _ in range(2)]
    await world.check_heartbeats()
    await _wait(world, 400, step_s=20)
    assert [(await world.job(job_id)).state for job_id in jobs] == ["running", "running"]


async def test_silence_is_counted_anew_after_this_process_was_frozen(world: World) -> None:
    """A laptop that slept, a process that was stopped: the same, without a restart."""
    _job_id, node_id = await world.run_on_serverless()
    await world.check_heartbeats()
    world.clock.advance(s=3600)
    await world.check_heartbeats()
    assert (await world.node(node_id)).state == "ready"


@pytest.mark.parametrize("serverless", [True, False])
async def test_a_node_that_never_calls_home_is_given_up_for_the_next_offer(world: World, serverless: bool) -> None:
    """After the start-up deadline: no fault, the offer is avoided, the machine is ended and paid for."""
    if not serverless:
        world.cloud.on_offer = world.cloud.on_offer[1:]
    job_id = await world.submit()
    await world.decide()
    await world.work()
    await world.check_heartbeats()
    node_id = (await world.newest_node()).id
    await _wait(world, 115)
    assert (await world.node(node_id)).state == "booting"
    await _wait(world, 10)
    job = await world.job(job_id)
    assert (job.state, job.faults) == ("queued", 0)
    assert job.avoided_offers == [("cloud/serverless-a100" if serverless else "cloud/market-a100")]
    await world.work()
    assert world.cloud.alive() == []
    assert (await world.node(node_id)).state == "terminated"
    assert await world.ledger_sum() == world.cloud.bill().micros > 0
    assert [row.payer for row in await world.rows(t.ledger)] == ["boot"]


async def test_a_run_that_does_not_leave_when_asked_is_ended_for_it(world: World) -> None:
    """The agent lives but the run stays: after the grace and the time for uploads the job goes on without it."""
    job_id, node_id = await world.run_on_serverless()
    await world.check_heartbeats()
    world.clock.advance(s=301)
    await world.beat(node_id)
    await world.check_heartbeats()
    await world.decide()
    assert (await world.job(job_id)).state == "checkpointing"
    for _ in range(65):
        world.clock.advance(s=10)
        await world.beat(node_id)
        await world.check_heartbeats()
    assert (await world.job(job_id)).state == "checkpointing"
    for _ in range(2):
        world.clock.advance(s=10)
        await world.beat(node_id)
        await world.check_heartbeats()
    assert (await world.job(job_id)).state == "waiting"


async def test_a_serverless_node_without_a_run_is_ended(world: World) -> None:
    """No machine stays because its run went away by some other door."""
    _job_id, node_id = await world.run_on_serverless()
    async with world.database.transaction() as connection:
        await connection.execute(t.allocations.update().values(to_ms=world.clock.now_ms()))
        await connection.execute(t.runs.update().values(state="ended"))
    await world.check_heartbeats()
    assert (await world.node(node_id)).state == "terminating"
