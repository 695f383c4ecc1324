"""Listings and rows are compared both ways, and our own blindness kills nothing."""

from __future__ import annotations

from app.db import tables as t
from app.errors import AuthFailed, Transient
from tests.control.fake_provider import Fault
from tests.control.world import World


async def test_an_old_machine_of_nobody_is_ended_and_a_young_one_left_alone(world: World) -> None:
    """Young: its row or its create call's answer may be on the way."""
    now_ms = world.clock.now_ms()
    old = world.cloud.plant(await world.own_label(), created_ms=now_ms - 61_000)
    young = world.cloud.plant(await world.own_label(), created_ms=now_ms - 59_000)
    await world.sweep()
    await world.work()
    assert [machine.ref for machine in world.cloud.alive()] == [young]
    assert old != young


async def test_a_second_machine_of_a_node_is_ended(world: World) -> None:
    """The node keeps the one it knows; the other is told in its events."""
    _job_id, node_id = await world.run_on_serverless()
    world.cloud.plant(node_id, created_ms=world.clock.now_ms() - 61_000)
    await world.sweep()
    await world.work()
    (kept,) = world.cloud.alive()
    assert kept.ref == (await world.node(node_id)).provider_ref
    assert "orphan_ended" in [row.kind for row in await world.rows(t.node_events)]


async def test_a_machine_whose_create_call_was_forgotten_is_adopted(world: World) -> None:
    """A worker died after the create: the sweep finds the machine under its node's name."""
    world.cloud.create_faults = [Fault.LOST_REPLY]
    await world.submit()
    await world.decide()
    await world.control.workers.work_once()
    await world.sweep()
    node = await world.newest_node()
    assert (node.state, node.provider_ref) == ("booting", world.cloud.alive()[0].ref)
    world.clock.advance(s=10)
    await world.work()
    assert world.cloud.creates == 1


async def test_the_machine_of_a_failed_node_is_ended_and_paid_for(world: World) -> None:
    """It came up after all: the node goes through a proper end, and the ledger equals the bill."""
    world.cloud.on_offer = world.cloud.on_offer[1:]
    await world.submit()
    await world.decide()
    world.cloud.create_faults = [Transient("no")] * 5
    for _ in range(40):
        await world.work()
        world.clock.advance(s=1)
    node_id = (await world.newest_node()).id
    assert (await world.node(node_id)).state == "failed"
    world.cloud.plant(node_id, created_ms=world.clock.now_ms())
    world.clock.advance(s=61)
    await world.sweep()
    await world.work()
    assert world.cloud.alive() == []
    assert (await world.node(node_id)).state == "terminated"
    assert await world.ledger_sum() == world.cloud.bill().micros > 0


async def test_the_late_machine_of_a_terminated_node_is_ended(world: World) -> None:
    """A node that is over has no machine."""
    _job_id, node_id = await world.run_on_serverless()
    await world.report(node_id, "exited", exit_code=0)
    await world.work()
    world.cloud.rented.clear()
    world.cloud.plant(node_id, created_ms=world.clock.now_ms() - 61_000)
    await world.sweep()
    await world.work()
    assert world.cloud.alive() == []


async def test_a_listing_that_fails_changes_nothing(world: World) -> None:
    """Our own outage never marks a node dead, however long it lasts."""
    job_id, node_id = await world.run_on_serverless()
    for error in (Transient("down"), AuthFailed("no")):
        world.cloud.listing_error = error
        for _ in range(5):
            await world.sweep()
            world.clock.advance(s=60)
    assert (await world.node(node_id)).missing_since_ms is None
    assert (await world.job(job_id)).state == "running"


async def test_a_machine_that_ended_by_itself_loses_its_node_and_the_job_goes_on(world: World) -> None:
    """Confirmed by the provider: at once, as a fault, and metered to the provider's end time only."""
    job_id, node_id = await world.run_on_serverless()
    world.clock.advance(s=20)
    world.cloud.die(node_id)
    world.clock.advance(s=20)
    await world.sweep()
    job = await world.job(job_id)
    assert (job.state, job.faults) == ("waiting", 1)
    await world.work()
    node = await world.node(node_id)
    assert node.state == "terminated"
    assert node.billed_to_ms == world.clock.now_ms() - 20_000
    assert await world.ledger_sum() == world.cloud.bill().micros


async def test_a_machine_that_is_only_missing_gets_its_grace(world: World) -> None:
    """Not listed and not known: lost only when it stays so."""
    job_id, node_id = await world.run_on_serverless()
    (rented,) = world.cloud.of_label(node_id)
    rented.vanished = True
    await world.sweep()
    assert (await world.node(node_id)).missing_since_ms == world.clock.now_ms()
    assert (await world.job(job_id)).state == "running"
    rented.vanished = False
    await world.sweep()
    assert (await world.node(node_id)).missing_since_ms is None
    rented.vanished = True
    await world.sweep()
    missed_ms = world.clock.now_ms()
    world.clock.advance(s=11)
    await world.sweep()
    assert (await world.job(job_id)).state == "waiting"
    assert (await world.node(node_id)).billed_to_ms == missed_ms  # nobody says when it ended


async def test_a_machine_that_the_listing_forgot_but_the_provider_knows_is_kept(world: World) -> None:
    """`get` is asked before anything is concluded from a listing."""
    job_id, node_id = await world.run_on_serverless()
    (rented,) = world.cloud.of_label(node_id)
    rented.visible_ms = world.clock.now_ms() + 3_600_000
    for _ in range(4):
        await world.sweep()
        world.clock.advance(s=30)
    assert (await world.job(job_id)).state == "running"
    assert (await world.node(node_id)).missing_since_ms is None


async def test_a_terminating_node_always_has_somebody_who_sees_to_it(world: World) -> None:
    """A terminate operation that got lost is issued again, once."""
    _job_id, node_id = await world.run_on_serverless()
    await world.report(node_id, "exited", exit_code=0)
    async with world.database.transaction() as connection:
        await connection.execute(t.provider_operations.delete().where(t.provider_operations.c.kind == "terminate"))
    await world.sweep()
    await world.sweep()
    await world.work()
    assert (await world.node(node_id)).state == "terminated"
    kinds = [row.kind for row in await world.rows(t.provider_operations)]
    assert kinds.count("terminate") == 1
