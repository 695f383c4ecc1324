"""A machine that was bid for goes to somebody who pays more: what that means for its jobs, its node, and what is
learned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from app.core.machine_lives import MachineLives
from app.core.model.job import PauseReason, PriorityClass
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.db import tables as t
from app.db.engine import Database
from app.db.jobs.reads import find_job
from app.db.nodes.machine_lives import lived_lately
from app.db.nodes.reads import list_nodes
from app.db.offers.listed import hosts_on_trial
from app.errors import AllpassError
from app.services.reading.explain_job import explain_job
from tests.conftest import CountingIds, ManualClock
from tests.control.fake_provider import make_offer
from tests.control.world import World, make_settings

SPOT: dict[str, Any] = {"priority_class": PriorityClass.SPOT, "saves_ms": 1}
ON_DEMAND = replace(make_offer("cloud", "host-1", Tier.MARKETPLACE, "0.72", startup_ms=30_000), host="1")
BID = replace(make_offer("cloud", "host-2~bid", Tier.MARKETPLACE, "0.36", startup_ms=30_000), host="2", spot_only=True)
OTHER_BID = replace(BID, offer_id="host-3~bid", host="3")


@pytest.fixture
async def world(database: Database, database_url: str, clock: ManualClock, ids: CountingIds) -> World:
    """Where every job has the cheapest machine that fits."""
    world = World(database, make_settings(database_url, policy="cheapest-first"), clock, ids)
    world.cloud.on_offer = [ON_DEMAND, BID]
    await world.open()
    return world


async def begin(world: World, job_id: str, *, step: int = 0) -> str:
    """Its machine comes up, and its code runs; returns the node."""
    await world.decide()
    await world.work()
    node_id = next(row.id for row in reversed(await world.rows(t.nodes)) if row.rented_for_job_id == job_id)
    await world.boot(node_id)
    await world.decide()
    await world.report(node_id, "running", step=step)
    return node_id


async def fall_silent(world: World, node_id: str, *beside: str) -> None:
    """Until the node is given up; `beside` are nodes that speak all the while."""
    for _ in range(200):
        world.clock.advance(s=5)
        for one in beside:
            await world.beat(one)
        await world.check_heartbeats()
        if (await world.node(node_id)).state not in {"ready", "unreachable"}:
            return
    raise AssertionError(f"{node_id} was never given up")


async def events_of(world: World, job_id: str, kind: str) -> list[Any]:
    return [one for one in await world.rows(t.job_events) if one.job_id == job_id and one.kind == kind]


async def test_a_spot_job_takes_the_bid_and_a_guaranteed_one_never_does(world: World) -> None:
    """Beside each other; and when the bid's machine is idle, the guaranteed job that comes rents its own."""
    spot, guaranteed = await world.submit(**SPOT), await world.submit()
    await world.decide()
    await world.work()
    kinds = {row.rented_for_job_id: row.offer["spot_only"] for row in await world.rows(t.nodes)}
    assert kinds == {spot: True, guaranteed: False}
    async with world.database.transaction() as connection:
        told = await list_nodes(connection, world.project_id, include_gone=False, before=None, limit=9)
    assert {one.rented_for_job_id: one.interruptible for one in told} == {spot: True, guaranteed: False}


async def test_losing_a_bid_is_no_fault_and_is_told_with_what_it_cost(world: World) -> None:
    """One job goes on elsewhere; the machine is ended, although it costs its disk only; what was done until the agent's
    last word is lost, and nothing that came after it is counted."""
    job_id = await world.submit(**SPOT)
    node_id = await begin(world, job_id)
    assert (await world.node(node_id)).offer["offer_id"] == BID.offer_id
    for _ in range(60):
        world.clock.advance(s=10)
        await world.report(node_id, "running", step=40)
    world.cloud.outbid(node_id)
    await fall_silent(world, node_id)
    job = await world.job(job_id)
    assert (job.state, job.faults) == ("waiting", 0)
    (event,) = await events_of(world, job_id, "interrupted")
    assert (event.data["steps"], event.data["lost_s"], event.data["lost_usd"]) == (40, 600.0, "$0.06")
    assert "went to somebody who pays more" in event.message
    assert "40 steps, 10 min of its work, $0.06 of its machine, are lost" in event.message
    async with world.database.transaction() as connection:
        row = await find_job(connection, world.project_id, job_id)
        assert row is not None
        told = await explain_job(connection, world.settings, row, now_ms=world.clock.now_ms())
    assert any("went to somebody who pays more" in one.text for one in told.because)
    await world.work()
    assert (await world.node(node_id)).state == "terminated"
    assert world.cloud.alive() == []
    await world.check_invariants()


async def test_it_goes_on_with_another_bid_else_on_demand(world: World) -> None:
    """The host that was lost is left alone for a while, and is not bid for in a circle."""
    world.cloud.on_offer = [ON_DEMAND, BID, OTHER_BID]
    job_id = await world.submit(**SPOT, checkpoint_step=5)
    taken = []
    for _ in range(3):
        node_id = await begin(world, job_id)
        taken.append((await world.node(node_id)).offer["offer_id"])
        world.cloud.outbid(node_id)
        await fall_silent(world, node_id)
        await world.work()
    assert taken == [BID.offer_id, OTHER_BID.offer_id, ON_DEMAND.offer_id]


async def test_no_number_of_lost_bids_uses_up_the_fault_budget(world: World) -> None:
    """It is three faults; five machines are lost."""
    job_id = await world.submit(**SPOT, checkpoint_step=5)
    for _ in range(5):
        node_id = await begin(world, job_id)
        world.cloud.outbid(node_id)
        await fall_silent(world, node_id)
        await world.work()
        world.clock.advance(s=3_600)
    job = await world.job(job_id)
    assert (job.state, job.faults) == ("waiting", 0)
    assert len(await events_of(world, job_id, "interrupted")) == 5


async def test_a_machine_that_runs_again_is_a_stranger(world: World) -> None:
    """Its bid has won again before anybody looked: what ran there is gone, its agent is not let in, and it is ended."""
    job_id = await world.submit(**SPOT, checkpoint_step=5)
    node_id = await begin(world, job_id)
    world.cloud.outbid(node_id, runs_again=True)
    await fall_silent(world, node_id)
    assert (await world.job(job_id)).faults == 0
    (rented,) = world.cloud.of_label(node_id)
    with pytest.raises(AllpassError):
        await world.join(rented)
    await world.work()
    assert world.cloud.told_to_end == [rented.machine.ref]
    assert len(await events_of(world, job_id, "interrupted")) == 1


async def test_a_bid_whose_machine_is_silent_for_no_known_reason_is_a_fault(world: World) -> None:
    """Its company says that it runs: the job's own code may have stopped it, and would do so again and again."""
    job_id = await world.submit(**SPOT, checkpoint_step=5)
    node_id = await begin(world, job_id)
    await fall_silent(world, node_id)
    assert (await world.job(job_id)).faults == 1
    assert await events_of(world, job_id, "interrupted") == []


async def test_a_job_that_was_to_pause_is_not_told_that_it_goes_on(world: World) -> None:
    job_id = await world.submit(**SPOT, checkpoint_step=5)
    node_id = await begin(world, job_id)
    await world.set_job(job_id, pause_reason=PauseReason.USER)
    world.cloud.outbid(node_id)
    await fall_silent(world, node_id)
    assert (await world.job(job_id)).state == "paused"
    assert await events_of(world, job_id, "interrupted") == []


async def test_a_job_that_has_kept_nothing_loses_one_bid_at_most(world: World) -> None:
    """Nobody knew that it does not save; it is on demand from then on."""
    world.cloud.on_offer = [ON_DEMAND, BID, OTHER_BID]
    world.saves_when_asked = False
    job_id = await world.submit(priority_class=PriorityClass.SPOT)
    node_id = await begin(world, job_id)
    assert (await world.node(node_id)).offer["spot_only"]
    world.cloud.outbid(node_id)
    await fall_silent(world, node_id)
    await world.work()
    again = await begin(world, job_id)
    assert not (await world.node(again)).offer["spot_only"]
    events = [one for one in await world.rows(t.node_events) if one.node_id == again]
    (requested,) = [one for one in events if one.kind == "node_requested"]
    assert "bids left out, as it would begin again from nothing" in requested.message


async def test_bids_and_hosts_on_demand_are_learned_of_apart(world: World) -> None:
    """A bid that was lost says how long bids live, and nothing about others."""
    spot, guaranteed = await world.submit(**SPOT, checkpoint_step=5), await world.submit()
    on_demand = await begin(world, guaranteed)
    async with world.database.transaction() as connection:
        bid = (await connection.execute(select(t.nodes.c.id).where(t.nodes.c.rented_for_job_id == spot))).scalar_one()
    await world.boot(bid)
    world.clock.advance(s=1_800)
    await world.beat(on_demand)
    await world.decide()
    world.cloud.outbid(bid)
    await fall_silent(world, bid, on_demand)
    assert (await world.node(bid)).lost_ms == world.clock.now_ms()
    async with world.database.transaction() as connection:
        seen = await lived_lately(connection, "cloud", now_ms=world.clock.now_ms())
    assert {one.interruptible: one.failures > 0 for one in seen} == {True: True, False: False}
    lives = MachineLives(seen)
    assert lives.told_of(ON_DEMAND).mean_life_ms == 0
    assert 0 < lives.told_of(BID).mean_life_ms < MachineLives([]).told_of(BID).mean_life_ms
    await world.work()  # until it is ended, its host is nobody else's
    decision = await world.decide()
    assert {one.interruptible: one.mean_life_ms for one in decision.snapshot.offers} == {
        True: lives.told_of(BID).mean_life_ms,
        False: 0,
    }


async def test_our_own_bid_is_not_outbid_by_ourselves(world: World) -> None:
    """The host of a bid is offered to nobody else as long as its machine is there: renting it on demand would end it.
    One that is rented on demand stands in nobody's way once it is up."""
    same_host: Offer = replace(ON_DEMAND, offer_id="host-2", host="2", price_per_hour=Money.usd("0.50"))
    world.cloud.on_offer = [ON_DEMAND, BID, same_host]
    spot = await world.submit(**SPOT, checkpoint_step=5)
    node_id = await begin(world, spot)
    async with world.database.transaction() as connection:
        assert await hosts_on_trial(connection) == {("cloud", "2")}
    guaranteed = await world.submit()
    decision = await world.decide()
    assert {one.key for one in decision.snapshot.offers} == {ON_DEMAND.key}
    await world.work()
    newest = await world.newest_node()
    assert (newest.rented_for_job_id, newest.host) == (guaranteed, "1")
    world.cloud.outbid(node_id)
    await fall_silent(world, node_id, newest.id)
    await world.work()
    async with world.database.transaction() as connection:
        assert ("cloud", "2") not in await hosts_on_trial(connection)


async def test_a_node_of_an_older_release_is_as_it_was_rented(world: World) -> None:
    """Its offer says nothing of bids, or nonsense: it is open to all, as it was."""
    job_id = await world.submit()
    node_id = await begin(world, job_id)
    for said in ({}, {"spot_only": None}, {"spot_only": "no"}, {"spot_only": 1}):
        offer = {name: value for name, value in (await world.node(node_id)).offer.items() if name != "spot_only"} | said
        async with world.database.transaction() as connection:
            await connection.execute(t.nodes.update().where(t.nodes.c.id == node_id).values(offer=offer))
        (seen,) = (await world.see(type(world.memory)())).nodes
        assert seen.spot_only is False
