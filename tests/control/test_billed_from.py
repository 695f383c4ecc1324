"""Since when a machine is billed, where its provider does not tell: the earliest look that found it running counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import update

from app.core.model.money import Money
from app.db import tables as t
from tests.control.world import World


async def test_a_later_look_of_another_process_changes_nothing(world: World) -> None:
    """After a restart the first look comes late: the time that is on record stays, also when the machine ends."""
    _job_id, node_id = await world.run_on_serverless()
    before = (await world.node(node_id)).billed_from_ms
    (rented,) = world.cloud.rented.values()
    rented.machine = replace(rented.machine, billed_from_ms=before + 5_000)
    await world.sweep()
    assert (await world.node(node_id)).billed_from_ms == before
    world.clock.advance(s=10)
    await world.report(node_id, "exited", exit_code=0)
    await world.work()
    node = await world.node(node_id)
    assert (node.state, node.billed_from_ms) == ("terminated", before)


async def test_an_earlier_look_counts(world: World) -> None:
    """What is known to have run earlier is billed from then on."""
    _job_id, node_id = await world.run_on_serverless()
    before = (await world.node(node_id)).billed_from_ms
    (rented,) = world.cloud.rented.values()
    rented.machine = replace(rented.machine, billed_from_ms=before - 500)
    await world.sweep()
    assert (await world.node(node_id)).billed_from_ms == before - 500


async def test_a_machine_that_nobody_looked_at_is_billed_from_its_agents_first_call(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came and went between two looks, and its provider tells neither times nor a bill: it ran all the same."""
    _job_id, node_id = await world.run_on_serverless()
    (rented,) = world.cloud.rented.values()
    rented.machine = replace(rented.machine, billed_from_ms=None)
    monkeypatch.setattr(world.cloud, "_charge", lambda _machine: None)
    async with world.database.transaction() as connection:
        await connection.execute(update(t.nodes).values(billed_from_ms=None))
    world.clock.advance(s=60)
    await world.report(node_id, "exited", exit_code=0)
    await world.work()
    node = await world.node(node_id)
    assert (node.state, node.billed_from_ms) == ("terminated", node.ready_ms)
    assert await world.ledger_sum() >= Money.usd("2.10").micros * 60 // 3_600
