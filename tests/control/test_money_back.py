"""A machine that never worked has been billed: its owner is told what to ask for, and nothing is booked on the hope."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.model.money import Money
from app.db import tables as t
from app.db.nodes.lifecycle import lock_node
from app.services.jobs.cancel_job import cancel_job
from app.services.nodes.give_machine_back import give_machine_back
from tests.control.world import World


async def rented(world: World) -> str:
    """A machine of the marketplace, half a minute old."""
    world.cloud.on_offer = world.cloud.on_offer[1:]
    await world.submit()
    await world.decide()
    await world.work()
    node_id: str = (await world.newest_node()).id
    world.clock.advance(s=30)
    return node_id


async def give_back(world: World, node_id: str) -> None:
    async with world.database.transaction() as connection:
        node = await lock_node(connection, node_id)
        assert node is not None
        await give_machine_back(connection, world.ids, node, "has 1 GPU", now_ms=world.clock.now_ms())
    await world.work()


async def told(world: World) -> list[Any]:
    return [event for event in await world.rows(t.node_events) if event.kind == "node_money_back"]


async def test_a_machine_that_was_not_what_was_rented_is_asked_back_for(world: World) -> None:
    """With what it cost by its company's own bill, its company's name for it, and when it was; where `allpass nodes`
    shows it. The ledger is the bill, and nothing less."""
    node_id = await rented(world)
    await world.boot(node_id)
    await give_back(world, node_id)
    (event,) = await told(world)
    node = await world.newest_node()
    assert node.state == "terminated"
    cost = world.cloud.bill()
    assert cost.micros > 0
    assert await world.ledger_sum() == cost.micros == event.data["cost_micros"]
    assert f"has billed {cost} for it: ask the support of" in event.message
    assert node.provider_ref in event.message
    assert " UTC" in event.message
    assert node.end_message.startswith("the machine of")
    assert node.end_message.endswith(event.message)


async def test_a_machine_that_never_came_is_asked_back_for(world: World) -> None:
    """Where its company bills from the call on."""
    node_id = await rented(world)
    await world.check_heartbeats()
    for _ in range(15):  # beyond the deadline for its start, looked at every now and then
        world.clock.advance(s=10)
        await world.check_heartbeats()
    await world.work()
    node = await world.newest_node()
    assert (node.id, node.state) == (node_id, "terminated")
    assert (await world.ledger_sum(), len(await told(world))) == (world.cloud.bill().micros, 1)


async def test_a_machine_that_has_worked_is_paid_for(world: World) -> None:
    """Whatever became of it."""
    node_id = await rented(world)
    await world.boot(node_id)
    await world.decide()
    await world.report(node_id, "running")
    world.clock.advance(s=60)
    await give_back(world, node_id)
    assert (await world.newest_node()).state == "terminated"
    assert await told(world) == []


async def test_a_machine_that_cost_nothing_is_not_asked_back_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its company has given it back already, or never billed it."""
    node_id = await rented(world)
    await world.boot(node_id)
    monkeypatch.setattr(world.cloud, "_charge", lambda _: Money(0))
    await give_back(world, node_id)
    assert await world.ledger_sum() == 0
    assert await told(world) == []


async def test_a_machine_that_was_not_to_blame_is_paid_for(world: World) -> None:
    """As when its job was cancelled while it booted."""
    node_id = await rented(world)
    await world.boot(node_id)
    (job,) = await world.rows(t.jobs)
    async with world.database.transaction() as connection:
        await cancel_job(connection, world.ids, world.project_id, job.id, now_ms=world.clock.now_ms())
    await world.decide()
    await world.work()
    world.clock.advance(s=3_600)
    await world.decide()
    await world.work()
    assert (await world.newest_node()).state == "terminated"
    assert await told(world) == []
