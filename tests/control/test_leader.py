"""One leader at a time, and nothing written by one whose time is over."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text

from app.control.leader import Leader
from app.control.sweep import sweep
from app.db import tables as t
from app.db.engine import Database
from app.errors import Fenced
from tests.control.world import World


class Hand:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def _expire(database: Database) -> None:
    async with database.transaction() as connection:
        await connection.execute(text("UPDATE leader_leases SET expires_at = clock_timestamp()"))


async def test_one_of_many_leads(database: Database) -> None:
    """Of processes that stand at the same time exactly one leads, and it goes on leading."""
    leaders = [Leader(database, holder=f"p{number}", lease_s=30) for number in range(5)]
    assert sum(await asyncio.gather(*(leader.step() for leader in leaders))) == 1
    first = next(leader for leader in leaders if leader.leads)
    assert sum(await asyncio.gather(*(leader.step() for leader in leaders))) == 1
    assert (first.leads, first.term) == (True, 1)


async def test_terms_only_grow(database: Database) -> None:
    """Each change of leader is a new term, also when the same process leads again."""
    one, two = (Leader(database, holder=holder, lease_s=30) for holder in ("one", "two"))
    await one.step()
    await _expire(database)
    assert await two.step()
    assert not await one.step()
    await two.stand_down()
    assert await one.step()
    assert one.term == 3


async def test_a_leader_stops_trusting_itself_before_its_lease_ends(database: Database) -> None:
    """By its own clock, counted from before the lease was asked for."""
    clock = Hand()
    leader = Leader(database, holder="one", lease_s=10, monotonic=clock)
    await leader.step()
    clock.now_s += 6.9
    assert leader.leads
    clock.now_s += 0.2
    assert not leader.leads
    async with database.transaction() as connection:
        with pytest.raises(Fenced):
            await leader.guard(connection)
    assert await leader.step(), "the lease itself still holds and is renewed"


async def test_standing_down_twice_is_harmless_and_lets_the_next_lead_at_once(database: Database) -> None:
    """A process that leaves does not make others wait for its lease."""
    one, two = (Leader(database, holder=holder, lease_s=30) for holder in ("one", "two"))
    await one.step()
    await one.stand_down()
    await one.stand_down()
    assert await two.step()
    await one.stand_down()
    assert await two.step()


async def test_nobody_takes_the_lead_inside_a_guarded_transaction(database: Database) -> None:
    """Between the check of the term and the commit there is no gap: a successor waits for it."""
    one, two = (Leader(database, holder=holder, lease_s=30) for holder in ("one", "two"))
    await one.step()
    async with database.transaction() as connection:
        await one.guard(connection)
        # Expired meanwhile, seen by everyone but this transaction: the row itself cannot be changed under its lock.
        successor = asyncio.create_task(two.step())
        expiring = asyncio.create_task(_expire(database))
        done, _pending = await asyncio.wait({expiring}, timeout=0.2)
        assert not done
    await expiring
    await successor
    assert await two.step()


async def test_the_old_leader_is_fenced_when_it_enacts(world: World) -> None:
    """A decision that was made before the lead was lost writes nothing at all."""
    job_id = await world.submit()
    old = world.control
    await world.restart()
    with pytest.raises(Fenced):
        await old.loop.tick("late")
    assert (await world.job(job_id)).state == "queued"
    assert await world.rows(t.nodes) == []
    assert await world.rows(t.ticks) == []
    await world.decide()
    assert (await world.job(job_id)).state == "starting"


async def test_the_chores_of_an_old_leader_are_fenced(world: World) -> None:
    """Sweeping with an ended term ends no machine."""
    world.cloud.plant(await world.own_label(), created_ms=world.clock.now_ms() - 3_600_000)
    old = world.control
    await world.restart()
    with pytest.raises(Fenced):
        await sweep(old.context)
    assert len(world.cloud.alive()) == 1


async def test_a_process_that_does_not_lead_decides_nothing(world: World) -> None:
    """Its ticks are empty, without an error."""
    await world.submit()
    follower = world.new_control()
    assert not await follower.context.leader.step()
    assert await follower.loop.tick("test") is None
    assert await world.rows(t.nodes) == []
