"""Machines never leak and are never double: what the comparison of listings with rows may conclude, and what not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from app.control import sweep as sweeping
from app.core.model.node import Tier
from app.core.policies import policy_named
from app.db import tables as t
from app.db.fences import hold_fence
from app.db.nodes.lifecycle import nodes_named, set_node
from app.errors import Fenced, NoCapacity, Transient
from app.ports.provider import Machine
from tests.control.fake_provider import FakeProvider, Fault, make_offer
from tests.control.world import World

_OLD_MS = 61_000


async def _orphan_cost(world: World) -> int:
    return sum(row.amount_micros for row in await world.rows(t.ledger) if row.payer == "orphan")


async def test_an_orphan_is_ended_like_any_machine_and_paid_as_the_projects_line_orphan(world: World) -> None:
    """It becomes a node that is to end, of the oldest project when its label tells none; the ledger equals its bill."""
    world.cloud.plant(await world.own_label(), created_ms=world.clock.now_ms() - _OLD_MS)
    await world.sweep()
    node = await world.newest_node()
    assert (node.state, node.orphan, node.project_id) == ("terminating", True, world.project_id)
    world.clock.advance(s=5)
    await world.work()
    assert world.cloud.alive() == []
    assert (await world.node(node.id)).state == "terminated"
    assert await _orphan_cost(world) == await world.ledger_sum() == world.cloud.bill().micros > 0
    assert [row.job_id for row in await world.rows(t.ledger)] == [None]


async def test_an_orphan_that_does_not_end_is_not_taken_in_twice(world: World) -> None:
    """Its end is asked for until it comes; further sweeps find that it is being seen to."""
    world.cloud.slow_to_end = 4
    world.cloud.plant(await world.own_label(), created_ms=world.clock.now_ms() - _OLD_MS)
    for _ in range(8):
        await world.sweep()
        await world.work()
        world.clock.advance(s=2)
    assert world.cloud.alive() == []
    assert len(await world.rows(t.nodes)) == 1
    assert await world.ledger_sum() == world.cloud.bill().micros


async def test_an_orphan_is_no_place_for_jobs_and_takes_none_away(world: World) -> None:
    """Decisions do not see it: it counts against no limit."""
    world.cloud.slow_to_end = 10**6
    world.cloud.plant(await world.own_label(), created_ms=world.clock.now_ms() - _OLD_MS)
    await world.sweep()
    decision = await world.decide()
    assert decision.snapshot.nodes == ()


async def test_the_cost_of_a_second_machine_is_not_its_jobs(world: World) -> None:
    """The project of its node pays it as an orphan; the job pays for the machine that it runs on."""
    job_id, node_id = await world.run_on_serverless()
    world.cloud.plant(node_id, created_ms=world.clock.now_ms() - _OLD_MS)
    await world.sweep()
    await world.work()
    world.clock.advance(s=30)
    await world.report(node_id, "exited", exit_code=0)
    await world.work()
    second = next(one.machine for one in world.cloud.rented.values() if one.machine.tier is Tier.MARKETPLACE)
    assert await _orphan_cost(world) == world.cloud._charge(second).micros > 0
    assert await world.ledger_sum() == world.cloud.bill().micros
    assert (await world.job(job_id)).spent_micros < world.cloud.bill().micros
    await world.check_invariants()


async def test_a_machine_that_is_known_is_kept_when_a_listing_shows_it_without_its_label(world: World) -> None:
    """Labels that were set late, or got lost: the provider's own reference says whose it is."""
    job_id, node_id = await world.run_on_serverless()
    (rented,) = world.cloud.of_label(node_id)
    rented.machine = replace(rented.machine, label=None)
    world.clock.advance(s=600)
    await world.beat(node_id)
    await world.sweep()
    await world.work()
    assert [machine.ref for machine in world.cloud.alive()] == [rented.machine.ref]
    assert (await world.job(job_id)).state == "running"


async def test_a_machine_without_a_label_is_left_alone(world: World) -> None:
    """The create call's answer was lost, and with it the label: another machine takes its place. Whose this one is,
    nothing tells: it is named in the log, and a person ends it."""
    world.cloud.create_faults = [Fault.LOST_REPLY]
    await world.submit()
    await world.decide()
    await world.work()
    (rented,) = world.cloud.rented.values()
    rented.machine = replace(rented.machine, label=None)
    world.clock.advance(s=62)
    await world.sweep()
    await world.work()
    assert world.cloud.creates == 2
    await world.sweep()
    await world.work()
    (node,) = await world.rows(t.nodes)
    assert {machine.ref for machine in world.cloud.alive()} == {node.provider_ref, rented.machine.ref}


async def test_rows_are_read_again_before_a_machine_is_ended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node learns its machine between the listing and the verdict: nothing is ended."""
    _job_id, node_id = await world.run_on_serverless()
    (rented,) = world.cloud.of_label(node_id)
    async with world.database.transaction() as connection:
        await set_node(connection, node_id, provider_ref="m-other")

    async def then_it_changes(connection: Any, labels: Any) -> Any:
        seen = await nodes_named(connection, labels)
        await set_node(connection, node_id, provider_ref=rented.machine.ref)
        return seen

    monkeypatch.setattr(sweeping, "nodes_named", then_it_changes)
    monkeypatch.setattr(sweeping, "nodes_of_machines", _none_at_first(sweeping.nodes_of_machines))
    world.clock.advance(s=62)
    await world.beat(node_id)
    await world.sweep()
    await world.work()
    assert [machine.ref for machine in world.cloud.alive()] == [rented.machine.ref]


def _none_at_first(read: Any) -> Any:
    calls = []

    async def reading(*given: Any) -> Any:
        calls.append(given)
        return {} if len(calls) == 1 else await read(*given)

    return reading


async def test_an_end_that_was_confirmed_wrongly_is_asked_for_again_until_the_listing_confirms_it(world: World) -> None:
    """The provider says that the machine is gone, its listing shows it alive: what it costs from then on is an
    orphan's, and nothing is paid twice."""
    _job_id, node_id = await world.run_on_serverless()
    world.clock.advance(s=20)
    world.cloud.keeps_running = True
    await world.report(node_id, "exited", exit_code=0)
    await world.work()
    assert (await world.node(node_id)).state == "terminated"
    (ref,) = world.cloud.told_to_end
    await world.sweep()
    await world.work()
    assert world.cloud.told_to_end == [ref], "listings lag behind ends too"
    world.clock.advance(s=90)
    world.cloud.keeps_running = False
    await world.sweep()
    await world.work()
    assert world.cloud.told_to_end == [ref, ref]
    assert world.cloud.alive() == []
    assert await world.ledger_sum() == world.cloud.bill().micros
    assert await _orphan_cost(world) > 0


async def test_a_partial_listing_is_checked_machine_by_machine(world: World) -> None:
    """Of three that are not listed one is dead, one alive, and of one nobody answers: only the dead one is lost."""
    running = [await world.run_on_serverless() for _ in range(3)]
    dead, alive, unanswered = (node_id for _job_id, node_id in running)
    for _job_id, node_id in running:
        world.cloud.of_label(node_id)[0].visible_ms = world.clock.now_ms() + 3_600_000
    world.cloud.die(dead)
    get = world.cloud.get
    silent_ref = world.cloud.of_label(unanswered)[0].machine.ref

    async def answers_some(ref: str) -> Machine | None:
        if ref == silent_ref:
            raise Transient("502")
        return await get(ref)

    object.__setattr__(world.cloud, "get", answers_some)
    for _ in range(3):
        await world.sweep()
        world.clock.advance(s=20)
    assert [(await world.node(node_id)).state for node_id in (dead, alive, unanswered)] == [
        "terminating",
        "ready",
        "ready",
    ]


async def test_while_its_agent_speaks_a_machine_is_there_whatever_the_provider_lists(world: World) -> None:
    """Neither listed nor known to `get`, and alive: the node is kept, and lost when its agent falls silent too."""
    job_id, node_id = await world.run_on_serverless()
    world.cloud.of_label(node_id)[0].vanished = True
    for _ in range(4):
        await world.sweep()
        world.clock.advance(s=20)
        await world.beat(node_id)
        await world.check_heartbeats()
    assert (await world.job(job_id)).state == "running"
    for _ in range(8):
        world.clock.advance(s=5)
        await world.check_heartbeats()
    assert (await world.job(job_id)).state == "waiting"


async def test_a_lost_node_is_fenced_before_its_job_goes_on(world: World) -> None:
    """What a machine that was given up still sends counts nothing, also while its job has no other place yet."""
    job_id, node_id = await world.run_on_serverless()
    await world.check_heartbeats()
    epoch = (await world.job(job_id)).epoch
    for _ in range(35):
        world.clock.advance(s=5)
        await world.check_heartbeats()
    assert (await world.job(job_id)).state == "waiting"
    with pytest.raises(Fenced):
        async with world.database.transaction() as connection:
            await hold_fence(connection, node_id, job_id, epoch)


async def test_one_job_fails_over_once_however_many_find_out_at_the_same_time(world: World) -> None:
    """Sweep, heartbeats and two decisions side by side: one fault, one new run, one machine for it."""
    job_id, node_id = await world.run_on_serverless()
    await world.check_heartbeats()
    for _ in range(7):
        world.clock.advance(s=5)
        await world.check_heartbeats()
    assert (await world.node(node_id)).state == "unreachable"
    world.cloud.die(node_id)
    world.clock.advance(s=5)
    await asyncio.gather(world.sweep(), world.check_heartbeats(), world.sweep(), world.check_heartbeats())
    job = await world.job(job_id)
    assert (job.state, job.faults) == ("waiting", 1)
    world.clock.advance(s=2)
    second = world.new_control()
    await asyncio.gather(world.decide(), second.loop.tick("test"), world.decide())
    await asyncio.gather(world.work(), second.workers.work_once(), second.workers.work_once())
    await world.check_invariants()
    assert len(world.cloud.alive()) == 1
    assert len(await world.rows(t.runs)) + sum(n.state == "booting" for n in await world.rows(t.nodes)) <= 3


async def test_machines_that_do_not_come_up_cost_the_next_offer_then_the_next_provider_and_no_fault(
    world: World,
) -> None:
    """Each provider's own deadline, then the next offer and the next company; meanwhile the job stays serverless."""
    other = FakeProvider(world.clock, name="cloud2")
    other.on_offer = [make_offer("cloud2", "vm-a100", Tier.CONVENTIONAL, "1.29", startup_ms=60_000)]
    world.cloud.on_offer.append(make_offer("cloud", "market-2", Tier.MARKETPLACE, "0.80", startup_ms=30_000))
    world.other_clouds = [other]
    await world.restart()
    world.control.loop._policy = policy_named("allpass")
    job_id, serverless = await world.run_on_serverless()
    await world.check_heartbeats()
    world.clock.advance(s=840.001)
    rented: list[str] = []
    for _ in range(20):
        await world.control.context.leader.step()  # on a slow machine this takes longer than a lease
        await world.beat(serverless)
        await world.decide()
        await world.work()
        await world.check_heartbeats()
        newest = await world.newest_node()
        if newest.tier != "serverless" and newest.offer["offer_id"] not in rented:
            rented.append(newest.offer["offer_id"])
        world.clock.advance(s=20)
    assert rented == ["market-a100", "market-2", "vm-a100"]
    job = await world.job(job_id)
    assert (job.state, job.faults) == ("running", 0)
    assert await world.node_of(job_id) == serverless
    await world.check_invariants()


async def test_without_any_other_machine_a_job_stays_where_it_is(world: World) -> None:
    """Every create is refused: the job trains on, is told why, and no storm of calls follows."""
    world.control.loop._policy = policy_named("allpass")
    world.cloud.create_faults = [None, *[NoCapacity("none left")] * 100]
    job_id, serverless = await world.run_on_serverless()
    world.clock.advance(s=840.001)
    for _ in range(12):
        await world.beat(serverless)
        await world.decide()
        await world.work()
        world.clock.advance(s=5)
    job = await world.job(job_id)
    assert (job.state, job.faults) == ("running", 0)
    assert "node_given_up" in await world.events(job_id)
    assert world.cloud.creates <= 5
