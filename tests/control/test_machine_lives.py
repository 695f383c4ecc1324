"""Machines that fail are learned from: who has failed, what listings say then, and how often agents are to save."""

from __future__ import annotations

import pytest

from app.core.machine_lives import HALF_LIFE_MS
from app.core.model.offer import Offer
from app.db import tables as t
from app.db.runs.desired_state import orders
from app.services.nodes.sync_agent import _mean_life_s
from tests.control.world import World

HOUR_S = 3_600


async def kinds(world: World) -> dict[str, int]:
    """The mean life of machines by tier, as the next listing says."""
    decision = await world.decide()
    return {str(offer.tier): offer.mean_life_ms for offer in decision.snapshot.offers}


async def fail(world: World, *, after_s: int = HOUR_S, outage: bool = False) -> str:
    """A serverless machine runs for so long, and is gone."""
    _job_id, node_id = await world.run_on_serverless()
    world.clock.advance(s=after_s)
    world.cloud.die(node_id, outage=outage)
    await world.sweep()
    await world.work()
    return node_id


async def test_a_machine_that_failed_says_how_long_its_like_live(world: World) -> None:
    """Half an hour, and the hour that was believed in before: about an hour and a half. Of other tiers nothing is
    said."""
    node_id = await fail(world, after_s=HOUR_S // 2)
    assert (await world.node(node_id)).lost_ms == world.clock.now_ms()
    found = await kinds(world)
    assert found.pop("serverless") == pytest.approx(1.5 * HOUR_S * 1_000, rel=0.02)
    assert set(found.values()) == {0}


async def test_the_nodes_of_a_decision_live_as_long_as_their_offers_say(world: World) -> None:
    await fail(world)
    _job_id, node_id = await world.run_on_serverless()
    decision = await world.decide()
    lives = {offer.mean_life_ms for offer in decision.snapshot.offers if offer.tier == "serverless"}
    assert {node.mean_life_ms for node in decision.snapshot.nodes if node.node_id == node_id} == lives != {0}


async def test_a_provider_that_went_down_says_nothing_about_its_machines(world: World) -> None:
    node_id = await fail(world, outage=True)
    assert (await world.node(node_id)).lost_ms is None
    assert set((await kinds(world)).values()) == {0}


async def test_a_machine_that_was_given_back_has_not_failed(world: World) -> None:
    """Its job was done."""
    _job_id, node_id = await world.run_on_serverless()
    world.clock.advance(s=HOUR_S)
    await world.report(node_id, "exited", exit_code=0)
    await world.work()
    node = await world.node(node_id)
    assert (node.state, node.lost_ms) == ("terminated", None)
    assert set((await kinds(world)).values()) == {0}


async def test_a_machine_that_was_on_its_way_out_has_not_failed(world: World) -> None:
    """That it is gone before our own call arrives is as it should be."""
    _job_id, node_id = await world.run_on_serverless()
    world.clock.advance(s=HOUR_S)
    await world.report(node_id, "exited", exit_code=0)
    world.cloud.die(node_id)
    await world.sweep()
    await world.work()
    assert (await world.node(node_id)).lost_ms is None


async def test_a_silent_machine_has_failed_when_it_is_given_up(world: World) -> None:
    """Its company lists it, and its agent is not heard for long."""
    job_id, node_id = await world.run_on_serverless()
    await world.check_heartbeats()
    for _ in range(60):
        world.clock.advance(s=5)
        await world.check_heartbeats()
    assert (await world.job(job_id)).state == "waiting"
    assert (await world.node(node_id)).lost_ms is not None


async def test_what_failed_is_forgotten(world: World) -> None:
    """After two weeks nothing is said any more: the market is tried as any other."""
    await fail(world)
    assert any((await kinds(world)).values())
    world.clock.advance(s=14 * HALF_LIFE_MS // 1_000)
    assert not any((await kinds(world)).values())


@pytest.mark.parametrize(
    ("of_offer", "of_template", "told"),
    [
        (7_200_000, {}, 7_200.0),
        (0, {}, None),
        (7_200_000, {"checkpoint_interval_s": 60}, None),
        (-5, {}, None),
        (10**400, {}, None),
        ("soon", {}, None),
        (None, {}, None),
    ],
    ids=["known", "unknown", "asked for", "negative", "beyond all numbers", "a word", "nothing"],
)
async def test_an_agent_is_told_how_long_its_machine_lives(
    world: World, of_offer: object, of_template: dict[str, int], told: float | None
) -> None:
    """As its offer said when it was rented, unless the template says how often to save. A row that says nonsense, as
    one of another release may, costs no agent its orders."""
    job_id, node_id = await world.run_on_serverless()
    await world.set_job(job_id, template=of_template)
    async with world.database.transaction() as connection:
        offer = {**(await world.node(node_id)).offer, "mean_life_ms": of_offer}
        await connection.execute(t.nodes.update().where(t.nodes.c.id == node_id).values(offer=offer))
        (order,) = await orders(connection, node_id)
    assert _mean_life_s(order) == told


async def test_an_offer_of_an_older_release_says_nothing(world: World) -> None:
    """Rows without the field are read as ever."""
    _job_id, node_id = await world.run_on_serverless()
    node = await world.node(node_id)
    assert isinstance(node.offer, dict)
    async with world.database.transaction() as connection:
        offer = {name: value for name, value in node.offer.items() if name != "mean_life_ms"}
        await connection.execute(t.nodes.update().where(t.nodes.c.id == node_id).values(offer=offer))
        (order,) = await orders(connection, node_id)
    assert (order.mean_life_ms, _mean_life_s(order)) == (0, None)
    assert Offer.__dataclass_fields__["mean_life_ms"].default == 0
