"""Machines that end by themselves are left by a move that was prepared while they still trained; and what is done when
there is no time for that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.core.model.node import Tier
from app.db import tables as t
from app.db.engine import Database
from app.db.lock_order import lock_nodes, tenants_of
from app.errors import Fenced, OfferGone
from app.services.moves.leave_machine import leave_machine
from tests.conftest import CountingIds, ManualClock
from tests.control.chaos import Chaos
from tests.control.fake_provider import make_offer
from tests.control.moving import Moving
from tests.control.world import World, make_settings

_DAY_S = 86_400
_MARGIN_S, _SAVING_S = 900, 300
_PREPARES_S = 22  # the serverless offer's start-up and ALLPASS_MOVE_PREPARE_S


class Leaving(Moving):
    """`source` trains on a serverless machine that lives for a day. Whoever is asked looks at the clock first."""

    async def train(self, *, life_s: int = _DAY_S) -> None:
        world = self.world
        world.cloud.max_lifetime_ms = {Tier.SERVERLESS: life_s * 1000}
        self.job_id, self.source_node = await world.run_on_serverless()
        self.source = (await world.rows(t.runs))[-1].id
        await world.sweep()
        self.ends_ms = (await world.node(self.source_node)).ends_ms

    async def at(self, left_s: float) -> None:
        """So long before the machine ends; with all agents heard."""
        world = self.world
        world.clock.advance(ms=self.ends_ms - round(left_s * 1000) - world.clock.now_ms())
        for node in await world.rows(t.nodes):
            if node.state == "ready":
                await world.beat(node.id)
        await world.decide()
        await world.leave_in_time()

    async def has_begun(self) -> str:
        """The move that has, and its target's machine."""
        moves = await self.world.rows(t.moves)
        self.target = moves[-1].target_run_id
        self.target_node, _ = await self.place(self.target)
        return str(moves[-1].reason)

    async def boots(self) -> None:
        await self.world.work()
        await self.world.boot(self.target_node)


@pytest.fixture
async def world(database: Database, database_url: str, clock: ManualClock, ids: CountingIds) -> World:
    """Its policy leaves jobs where they are, and free nodes too."""
    settings = make_settings(database_url, serverless_budget_s=10 * _DAY_S, idle_release_s=10 * _DAY_S)
    world = World(database, settings, clock, ids)
    await world.open()
    return world


@pytest.fixture
def leaving(world: World, tmp_path: Path) -> Leaving:
    world.cloud.on_offer = world.cloud.on_offer[:1]
    return Leaving(world, tmp_path)


async def test_a_run_moves_before_its_machine_ends_and_trains_until_then(leaving: Leaving) -> None:
    """The target is rented so early that it is prepared a margin before the end; the job never waits."""
    world = leaving.world
    await leaving.train()
    await leaving.at(_MARGIN_S + _PREPARES_S + 1)
    assert await world.rows(t.moves) == []
    await leaving.at(_MARGIN_S + _PREPARES_S)
    assert await leaving.has_begun() == (
        "moves to cloud A100 at $2.10/h, the only one of the serverless offers that fit, "
        "ready in about 2 s: its machine ends in 15 min"
    )
    assert await leaving.states() == ("running", "preparing", "running", "standby")
    await leaving.at(_MARGIN_S)
    await leaving.boots()
    assert await leaving.prepared()
    await leaving.saves(leaving.source, 412, final=True)
    assert await leaving.says(leaving.target, "running", 412)
    assert await leaving.says(leaving.source, "exited", exit_code=75, saved_after_stop=True)
    assert await leaving.states() == ("running", "done", "ended", "running")
    job = await world.job(leaving.job_id)
    assert (job.faults, job.moves, job.step) == (0, 1, 412)
    assert not {"checkpointing", "waiting"} & set(await world.events(leaving.job_id))
    await world.work()
    assert (await world.node(leaving.source_node)).state == "terminated"
    await world.check_invariants()


async def test_a_job_longer_than_any_machine_lives_goes_through_several(leaving: Leaving) -> None:
    """Three days on machines of one day each, without a wait."""
    world = leaving.world
    await leaving.train()
    for day in range(3):
        await leaving.at(_MARGIN_S)
        await leaving.has_begun()
        await leaving.boots()
        assert await leaving.prepared()
        await leaving.saves(leaving.source, 100 * day, final=True)
        assert await leaving.says(leaving.source, "exited", exit_code=75, saved_after_stop=True)
        assert await leaving.says(leaving.target, "running", 100 * day)
        leaving.source, leaving.source_node = leaving.target, leaving.target_node
        await world.sweep()
        leaving.ends_ms = (await world.node(leaving.source_node)).ends_ms
    assert await leaving.says(leaving.source, "exited", 999, exit_code=0)
    job = await world.job(leaving.job_id)
    assert (job.state, job.faults, job.moves) == ("succeeded", 0, 3)
    assert "waiting" not in await world.events(leaving.job_id)
    await world.check_invariants()


async def test_a_target_that_is_late_goes_on_as_soon_as_it_is_prepared(leaving: Leaving) -> None:
    """In the last third of the margin the source saves, prepared or not; the machine that came is kept for the job."""
    world = leaving.world
    await leaving.train()
    await leaving.at(_MARGIN_S)
    await leaving.has_begun()
    await leaving.boots()
    await leaving.at(_SAVING_S + 1)
    assert (await leaving.states())[1] == "preparing"
    await leaving.at(_SAVING_S)
    assert await leaving.states() == ("running", "saving", "stopping", "standby")
    (told,) = [row for row in await world.rows(t.job_events) if row.kind == "run_stopping"]
    assert told.message == (
        "cloud ends this machine in 300 s: saves at the next step, and goes on when its next machine is prepared"
    )
    await leaving.saves(leaving.source, 412, final=True)
    assert await leaving.states() == ("running", "promoting", "stopping", "promoting")
    with pytest.raises(Fenced):
        await leaving.saves(leaving.source, 413)
    assert not await leaving.says(leaving.target, "prepared")
    assert await leaving.says(leaving.source, "exited", exit_code=75, saved_after_stop=True)
    assert await leaving.says(leaving.target, "running", 412)
    assert (await leaving.states())[1] == "done"
    await world.check_invariants()
    await Chaos(leaving).settle()


async def test_a_machine_that_has_not_come_in_time_is_not_waited_for(leaving: Leaving) -> None:
    """The final save, then a place like any other job that waits: no fault, and no machine is left over."""
    world = leaving.world
    await leaving.train()
    await leaving.at(_MARGIN_S)
    await leaving.has_begun()
    await leaving.at(_SAVING_S)
    assert (await leaving.states())[:3] == ("checkpointing", "abandoned", "stopping")
    await leaving.saves(leaving.source, 412, final=True)
    assert await leaving.says(leaving.source, "exited", exit_code=75, saved_after_stop=True)
    job = await world.job(leaving.job_id)
    assert (job.state, job.faults, job.checkpoint_step) == ("waiting", 0, 412)
    await Chaos(leaving).settle()


async def test_where_nothing_is_to_be_had_the_job_trains_until_the_last_third(leaving: Leaving) -> None:
    """Leaving earlier would gain it nothing."""
    world = leaving.world
    await leaving.train()
    world.cloud.on_offer = []
    await leaving.at(_SAVING_S + 1)
    assert (await world.job(leaving.job_id)).state == "running"
    await leaving.at(_SAVING_S)
    assert (await world.job(leaving.job_id)).state == "checkpointing"
    assert await world.rows(t.moves) == []


async def test_a_machine_that_could_not_be_had_is_followed_by_another_kind(leaving: Leaving) -> None:
    """While there is time: the job trains on, and next takes an offer that has not failed it."""
    world = leaving.world
    await leaving.train()
    world.cloud.on_offer.append(make_offer("cloud", "other-a100", Tier.SERVERLESS, "2.50", startup_ms=2_000))
    await leaving.at(_MARGIN_S)
    assert "$2.10/h" in await leaving.has_begun()
    world.cloud.create_faults = [OfferGone("somebody else has it")]
    await world.work()
    assert await leaving.states() == ("running", "abandoned", "running", "ended")
    await leaving.at(_MARGIN_S - 60)
    assert "$2.50/h" in await leaving.has_begun()
    assert (await world.job(leaving.job_id)).faults == 0
    await world.check_invariants()


async def test_the_cheapest_machine_that_comes_in_time_is_taken(leaving: Leaving) -> None:
    """A rented node for less where there is time for it; of a short life a quarter is kept, and it would come too
    late."""
    world = leaving.world
    market = make_offer("cloud", "market-a100", Tier.MARKETPLACE, "0.72", startup_ms=30_000)
    await leaving.train()
    world.cloud.on_offer.append(market)
    await leaving.at(_MARGIN_S)
    assert "$0.72/h" in await leaving.has_begun()
    other = Leaving(world, leaving.objects.root)
    world.cloud.on_offer = world.cloud.on_offer[:1]
    await other.train(life_s=600)
    world.cloud.on_offer.append(market)
    await other.at(150)
    assert "$2.10/h" in await other.has_begun()


async def test_a_node_that_is_free_comes_before_one_that_has_to_be_rented(leaving: Leaving) -> None:
    """Idle and ready: it costs the least and comes the soonest."""
    world = leaving.world
    first = Leaving(world, leaving.objects.root)
    world.cloud.on_offer = [make_offer("cloud", "market-a100", Tier.MARKETPLACE, "0.72", startup_ms=30_000)]
    first.job_id = await world.submit()
    await world.decide()
    await world.work()
    free_id = (await world.newest_node()).id
    await world.boot(free_id)
    await world.decide()
    await world.report(free_id, "running")
    world.cloud.on_offer = [make_offer("cloud", "serverless-a100", Tier.SERVERLESS, "2.10", startup_ms=2_000)]
    await leaving.train()
    await world.report(free_id, "exited", exit_code=0)
    await leaving.at(_MARGIN_S)
    await leaving.has_begun()
    assert leaving.target_node == free_id


async def test_a_job_that_ends_first_lets_go_of_its_target(leaving: Leaving) -> None:
    """The machine that was rented for it is given back."""
    world = leaving.world
    await leaving.train()
    await leaving.at(_MARGIN_S)
    await leaving.has_begun()
    await leaving.boots()
    assert await leaving.says(leaving.source, "exited", 500, exit_code=0)
    assert await leaving.states() == ("succeeded", "abandoned", "ended", "ended")
    await world.work()
    assert world.cloud.alive() == []
    assert await world.ledger_sum() == world.cloud.bill().micros


async def test_no_move_goes_to_a_machine_that_ends(leaving: Leaving) -> None:
    """A target whose own machine is at its margin is called off, and its source trains on."""
    world = leaving.world
    await leaving.train()
    await leaving.at(_MARGIN_S)
    await leaving.has_begun()
    await leaving.boots()
    (rented,) = world.cloud.of_label(leaving.target_node)
    rented.machine = replace(rented.machine, ends_ms=world.clock.now_ms())
    await world.sweep()
    await world.leave_in_time()
    assert await leaving.states() == ("running", "abandoned", "running", "ended")


@pytest.mark.parametrize(("boots", "states"), [(True, ("running", "saving")), (False, ("running", "preparing"))])
async def test_a_notice_makes_use_of_the_target_that_is_there(
    leaving: Leaving, boots: bool, states: tuple[str, str]
) -> None:
    """SIGTERM on the host: the agent has asked its processes to save; a machine that has come takes the job over."""
    world = leaving.world
    await leaving.train()
    await leaving.at(_MARGIN_S)
    await leaving.has_begun()
    if boots:
        await leaving.boots()
    for _ in range(2):
        async with world.database.transaction() as connection:
            await lock_nodes(connection, [leaving.source_node], tenants_of, reach=True)
            why, now_ms = "its machine is being taken away", world.clock.now_ms()
            await leave_machine(connection, world.ids, leaving.source_node, why, now_ms=now_ms, asks=False)
    assert (await leaving.states())[:2] == states
    await leaving.saves(leaving.source, 412, final=True)
    assert await leaving.says(leaving.source, "exited", exit_code=75, saved_after_stop=True)
    job = await world.job(leaving.job_id)
    assert (job.state, job.checkpoint_step, job.faults) == ("running" if boots else "waiting", 412, 0)
    await Chaos(leaving).settle()
    assert (await world.job(leaving.job_id)).state == "succeeded"
