"""A job on several machines moves to cheaper ones through the loop itself: rented while it trains, left at one step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.core.model.job import Resources
from app.core.model.node import Tier
from app.db.engine import make_engine
from app.db.runs.desired_state import orders
from app.services.jobs.pause_job import pause_job
from tests.control.dying import DyingDatabase, KilledError
from tests.control.fake_provider import make_offer
from tests.control.test_gangs import Gang, one_at_once
from tests.control.world import World
from tests.seeds import resources_json

CHEAP = replace(make_offer("cloud", "cheap", Tier.CONVENTIONAL, "0.5", startup_ms=1_000), region="west")


class Mover(Gang):
    """It has trained for hours when cheaper machines come on offer."""

    async def cheaper_ones_come(self) -> None:
        world = self.world
        self.here = await self.nodes()
        world.clock.advance(ms=3 * 3_600_000)
        await self.all_are_heard()
        world.cloud.on_offer = [*world.cloud.on_offer, CHEAP]

    async def all_are_heard(self) -> None:
        for node_id in await self.nodes():
            if (await self.world.node(node_id)).state == "ready":
                await self.joins(node_id)

    async def beside(self) -> list[str]:
        return [one for one in await self.nodes() if one not in self.here]

    async def boot_them(self) -> None:
        await self.world.work()
        for node_id in await self.beside():
            if (await self.world.node(node_id)).state == "booting":
                await self.world.boot(node_id)
                await self.joins(node_id)

    async def leave(self) -> None:
        for rank in (1, 0):
            saved: dict[str, Any] = {"step": 9, "saved_after_stop": True} if rank == 0 else {}
            await self.say(rank, "exited", exit_code=75, **saved)


@pytest.fixture
async def mover(world: World) -> Mover:
    made = Mover(world)
    await made.submit()
    await made.begin()
    await made.cheaper_ones_come()
    return made


async def test_it_moves_at_one_step_and_what_it_left_is_ended(mover: Mover) -> None:
    world = mover.world
    await world.decide()
    there = await mover.beside()
    assert len(there) == 2 and await mover.state() == "running"
    await world.decide()
    assert await mover.beside() == there, "nothing more while they come"
    await mover.boot_them()
    await world.decide()
    assert await mover.state() == "checkpointing"
    async with world.database.transaction() as connection:
        (order,) = await orders(connection, (await mover.runs())[1].node_id)
    assert (order.lead_state, order.lead_stop_mode) == ("stopping", "checkpoint"), "members are asked with it"
    await world.decide()
    assert await mover.beside() == there, "they are its own while it saves"
    await mover.leave()
    await world.decide()
    assert [run.node_id for run in await mover.runs()] == there
    job = await world.job(mover.job_id)
    assert (job.state, job.moves, job.faults) == ("starting", 1, 0)
    told = await mover.messages()
    assert any(
        "2 machines at once while it trains: its 2 machines cost $1.00/h at cloud west, $4.00/h" in one for one in told
    )
    assert any(one.startswith("moves: its 2 machines cost $1.00/h") for one in told)
    world.clock.advance(ms=600_000)
    await mover.all_are_heard()
    await world.decide()
    await world.work()
    assert await mover.nodes() == there
    await world.check_invariants()


async def test_code_that_does_not_stop_at_one_step_is_left_where_it_is(world: World) -> None:
    """Nobody asked for a move: processes that left one by one would fail, and lose what they had done."""
    mover = Mover(world)
    mover.stops_together = False
    await mover.submit()
    await mover.begin()
    await mover.cheaper_ones_come()
    await world.decide()
    assert await mover.beside() == []
    mover.stops_together = True
    await mover.say(1, "running", step=7)
    await mover.say(0, "running", step=7)
    await world.decide()
    assert len(await mover.beside()) == 2, "it may say so at any time"


async def test_where_a_long_list_has_nothing_that_is_worth_it_it_looks_again_after_a_minute(world: World) -> None:
    """After a short one soon: it may be that one host of a pool has joined, and the next one joins in a second."""
    mover = Mover(world)
    await mover.submit()
    await mover.begin()
    await mover.cheaper_ones_come()
    good = world.cloud.on_offer
    small = [replace(CHEAP, offer_id=f"small-{number}", memory_bytes=1) for number in range(7_000)]
    world.cloud.on_offer = [good[0], *small]
    await world.set_job(mover.job_id, resources=resources_json(Resources(nodes=2, memory_bytes_min=2)))
    await world.decide()
    world.cloud.on_offer = good
    await world.decide()
    assert await mover.beside() == []
    world.clock.advance(ms=61_000)
    await mover.all_are_heard()
    world.cloud.on_offer = [good[0], small[0]]
    await world.decide()
    world.clock.advance(ms=20)
    world.cloud.on_offer = good
    await world.decide()
    assert len(await mover.beside()) == 2


async def test_it_stays_where_one_of_them_does_not_boot_and_tries_again_later(mover: Mover) -> None:
    """Nothing that was rented for the move is kept for longer, and nothing is told of a wait: it trains."""
    world = mover.world
    await world.decide()
    await mover.boot_them()
    world.cloud.on_offer = world.cloud.on_offer[:1]
    await mover.loses((await mover.beside())[0])
    await world.decide()
    await world.work()
    assert (await mover.beside(), await mover.state()) == ([], "running")
    world.cloud.on_offer = [*world.cloud.on_offer, CHEAP]
    await world.decide()
    assert await mover.beside() == [], "it rests"
    world.clock.advance(ms=1_200_000)  # until an offer that has failed is tried again
    await mover.all_are_heard()
    await world.decide()
    assert len(await mover.beside()) == 2
    assert (await world.job(mover.job_id)).wait_reason is None
    await world.check_invariants()


async def test_where_a_limit_allows_one_of_them_it_stays(mover: Mover, monkeypatch: pytest.MonkeyPatch) -> None:
    world, asked = mover.world, one_at_once(monkeypatch)
    for _ in range(5):
        await world.decide()
    assert (await mover.beside(), len(asked), await mover.state()) == ([], 2, "running")
    assert (await world.job(mover.job_id)).wait_reason is None


async def test_paused_meanwhile_it_goes_nowhere(mover: Mover) -> None:
    world = mover.world
    await world.decide()
    await mover.boot_them()
    async with world.database.transaction() as connection:
        await pause_job(connection, world.ids, world.project_id, mover.job_id, now_ms=world.clock.now_ms())
    await world.decide()
    await world.work()
    assert await mover.beside() == []
    await mover.leave()
    assert await mover.state() == "paused"
    await world.decide()
    await world.check_invariants()


async def test_a_machine_that_is_lost_while_it_saves_is_no_fault_of_the_move(mover: Mover) -> None:
    """One of those that it leaves: it goes on from its last checkpoint, on those that are ready."""
    world = mover.world
    await world.decide()
    await mover.boot_them()
    await world.decide()
    there = await mover.beside()
    await mover.loses(mover.here[1])
    assert await mover.state() == "waiting"
    world.clock.advance(ms=120_000)
    await mover.all_are_heard()
    await world.decide()
    assert {run.node_id for run in await mover.runs()} == set(there)
    await world.check_invariants()


async def test_one_of_the_next_machines_that_is_lost_while_it_saves(mover: Mover) -> None:
    """It begins again where it was: those machines are there still, and all of them are ready."""
    world = mover.world
    await world.decide()
    await mover.boot_them()
    await world.decide()
    await mover.loses((await mover.beside())[0])
    await mover.leave()
    await world.decide()
    assert {run.node_id for run in await mover.runs()} == set(mover.here)
    await world.check_invariants()


async def test_a_server_that_dies_at_any_statement_of_a_move_moves_once(mover: Mover, database_url: str) -> None:
    """Whenever it died, there are two machines to go to or none, one set of runs, and in the end one move."""
    world, died, lifetime = mover.world, 0, 0
    alive = world.seen_by_control
    engine = make_engine(database_url, pool_size=4, timeout_s=10.0)
    try:
        while (await world.job(mover.job_id)).moves == 0 or await mover.state() != "starting":
            lifetime += 3
            assert lifetime < 400, "it gets there"
            world.seen_by_control = DyingDatabase(engine, lifetime)
            try:
                await world.restart()
                await world.decide()
            except KilledError:
                died += 1
                assert len(await mover.beside()) in (0, 2) and len(await mover.runs()) in (0, 2)
                await world.check_invariants()
            world.seen_by_control = alive
            await world.restart()
            await mover.boot_them()
            if await mover.state() == "checkpointing":
                await mover.leave()
    finally:
        world.seen_by_control = alive
        await world.restart()
        await engine.dispose()
    assert died > 2
    assert set(await mover.beside()) == {run.node_id for run in await mover.runs()}
    assert (await world.job(mover.job_id)).moves == 1
    await world.check_invariants()
