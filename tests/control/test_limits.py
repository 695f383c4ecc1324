"""What the installation may rent at real providers: machines at once and dollars a day, for everything that rents."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from app.core.limits import DAY_MS, day_begins_ms
from app.core.model.health import Chore
from app.core.model.money import Money
from app.db import tables as t
from app.db.engine import Database
from app.db.money.limits import DAY_MICROS, MACHINES, change_limits, rented_now
from tests.conftest import CountingIds, ManualClock
from tests.control.fake_provider import FakeProvider
from tests.control.poison import poison
from tests.control.world import World, make_settings
from tests.seeds import seed_node, seed_run

REAL = "vast"


@pytest.fixture
async def real(database: Database, database_url: str, clock: ManualClock, ids: CountingIds) -> AsyncIterator[World]:
    """A world whose only provider asks for real money."""
    world = World(database, make_settings(database_url, vast_api_key="k" * 20), clock, ids)
    world.cloud = FakeProvider(clock, name=REAL)
    world.control = world.new_control()
    await world.open()
    yield world


async def settle(world: World, **new: int | None) -> None:
    async with world.database.transaction() as connection:
        await change_limits(connection, new, now_ms=world.clock.now_ms())


async def spent(world: World) -> Money:
    async with world.database.transaction() as connection:
        return (await rented_now(connection, [REAL], now_ms=world.clock.now_ms())).spent


async def live(world: World, *, s: int) -> None:
    """Machines call home and the meter is read, every ten seconds."""
    for _ in range(s // 10):
        world.clock.advance(s=10)
        for node in await world.rows(t.nodes):
            if node.state == "ready":
                await world.beat(node.id)
        await world.meter()


async def test_at_first_two_machines_are_rented_and_who_waits_is_told_what_helps(real: World) -> None:
    """Four jobs wish for one each. The others wait with the reason and the command, and go on when it is given."""
    job_ids = [await real.submit() for _ in range(4)]
    await real.decide()
    await real.work()
    assert len(real.cloud.alive()) == 2
    await real.decide()
    waiting = [one for one in [await real.job(job_id) for job_id in job_ids] if one.state == "queued"]
    assert len(waiting) == 2
    for job in waiting:
        assert "2 of at most 2 machines at real providers" in job.wait_reason
        assert "allpass limits set --machines" in job.wait_reason
    await settle(real, **{MACHINES: 4})
    await real.decide()
    await real.work()
    assert len(real.cloud.alive()) == 4


async def test_what_is_not_real_is_not_limited(world: World) -> None:
    """The demo and emulated companies rent as they did."""
    for _ in range(4):
        await world.submit()
    await world.decide()
    await world.work()
    assert len(world.cloud.alive()) == 4


async def test_a_machine_whose_first_billing_unit_is_too_much_is_not_rented(real: World) -> None:
    """As for a job's own limit: nothing is begun that could only be broken off. Nothing is dropped again and again."""
    real.cloud.on_offer = real.cloud.on_offer[1:]  # a second of it is 200 micro-dollars
    await settle(real, **{DAY_MICROS: 100})
    job_id = await real.submit()
    for _ in range(3):
        await real.decide()
    assert await real.rows(t.nodes) == []
    job = await real.job(job_id)
    assert "a day at real providers" in job.wait_reason
    assert "allpass limits set --per-day" in job.wait_reason
    assert "action_dropped" not in await real.events(job_id)


async def test_at_the_days_limit_a_job_saves_and_pauses_and_goes_on_when_the_day_is_over(real: World) -> None:
    """What is spent is at most the limit and what one tick of the meter costs; the machine ends; nobody is asked."""
    real.clock.advance(ms=day_begins_ms(real.clock.now_ms()) + DAY_MS + 3_600_000 - real.clock.now_ms())
    await settle(real, **{DAY_MICROS: 100_000})
    job_id, node_id = await real.run_on_serverless()
    price = (await real.node(node_id)).price_micros_per_hour
    for _ in range(100):
        await live(real, s=10)
        if (await real.job(job_id)).state == "checkpointing":
            break
    assert (await real.job(job_id)).state == "checkpointing"
    assert (await spent(real)).micros <= 100_000 + price * 10 // 3600 + 1
    await real.report(node_id, "exited", exit_code=75, saved_after_stop=True)
    job = await real.job(job_id)
    assert (job.state, job.pause_reason) == ("paused", "day_limit")
    assert "goes on by itself at 00:00 UTC" in job.wait_reason
    await real.meter()
    await real.work()
    assert real.cloud.alive() == []
    await real.meter()
    assert (await real.job(job_id)).state == "paused"

    real.clock.advance(ms=DAY_MS)
    await real.restart()
    await real.meter()
    job = await real.job(job_id)
    assert (job.state, job.pause_reason, job.wait_reason) == ("waiting", None, None)
    await real.decide()
    await real.work()
    assert len(real.cloud.alive()) == 1
    await real.check_invariants()


async def test_an_owner_who_allows_more_lets_it_go_on_at_once(real: World) -> None:
    """Also a job that still saves; one that its own limit holds meanwhile stays paused for that."""
    job_id, node_id = await real.run_on_serverless()
    await settle(real, **{DAY_MICROS: 1})
    await live(real, s=10)
    assert (await real.job(job_id)).pause_reason == "day_limit"
    await settle(real, **{DAY_MICROS: None})
    await real.meter()
    job = await real.job(job_id)
    assert (job.state, job.pause_reason) == ("checkpointing", None)
    await settle(real, **{DAY_MICROS: 1})
    await real.meter()
    await real.report(node_id, "exited", exit_code=75, saved_after_stop=True)
    assert (await real.job(job_id)).state == "paused"
    await real.set_job(job_id, max_cost_micros=1)
    await settle(real, **{DAY_MICROS: None})
    await real.meter()
    job = await real.job(job_id)
    assert (job.state, job.pause_reason) == ("paused", "cost_cap")


async def test_at_the_days_limit_machines_that_hold_nothing_end(real: World) -> None:
    """Ready ones and those on their way; one on which a job still saves stays until it has left."""
    now_ms = real.clock.now_ms()
    async with real.database.transaction() as connection:
        idle = await seed_node(connection, real.project_id, provider=REAL, billed_from_ms=now_ms)
        coming = await seed_node(connection, real.project_id, provider=REAL, state="booting")
        elsewhere = await seed_node(connection, real.project_id, provider="local")
    await settle(real, **{MACHINES: None})
    _job_id, busy = await real.run_on_serverless()
    await settle(real, **{DAY_MICROS: 1})
    assert await real.control.do(Chore.LIMITS) == 0
    states = {row.id: row.state for row in await real.rows(t.nodes)}
    assert (states[idle], states[coming]) == ("terminating", "terminating")
    assert (states[elsewhere], states[busy]) == ("ready", "ready")


async def test_one_bad_job_does_not_keep_the_others_from_being_held(real: World) -> None:
    """Writing one of them fails, again and again: it is counted as a failure, and the others pause."""
    await settle(real, **{MACHINES: None, DAY_MICROS: None})
    held = [(await real.run_on_serverless())[0] for _ in range(4)]
    await settle(real, **{DAY_MICROS: 1})
    await poison(real, "jobs", held[1])
    assert await real.control.do(Chore.LIMITS) == 1
    assert [(await real.job(job_id)).pause_reason for job_id in held] == ["day_limit", None, "day_limit", "day_limit"]


@pytest.mark.parametrize("seed", range(3))
async def test_a_hundred_jobs_at_once_spend_at_most_one_tick_more(real: World, seed: int) -> None:
    """At prices by chance, on machines of several billing units, with another control process between two ticks. What
    is spent when all are asked to save is at most the limit and one tick of all their prices."""
    chance = random.Random(seed)
    prices = [chance.randrange(200_000, 4_000_000) for _ in range(100)]
    most = chance.randrange(1_000_000, 3_000_000)
    await settle(real, **{MACHINES: None, DAY_MICROS: most})
    units = [chance.choice((1, 1000)) for _ in prices]
    job_ids = [await running_at(real, *machine) for machine in zip(prices, units, strict=True)]
    for tick in range(1000):
        if tick == 3:
            await real.restart()
        await live(real, s=10)
        if (await real.job(job_ids[0])).pause_reason is not None:
            break
    assert {(await real.job(job_id)).pause_reason for job_id in job_ids} == {"day_limit"}
    booked = await real.ledger_sum()
    assert 0 < booked <= most + sum(prices) * 10 // 3600 + len(prices)
    assert (await spent(real)).micros >= booked


async def running_at(world: World, price_micros_per_hour: int, billing_unit_ms: int) -> str:
    """A job whose code runs on a machine of its own, which was rented now."""
    now_ms = world.clock.now_ms()
    job_id = await world.submit(state="running", epoch=1, first_running_ms=now_ms, saves_ms=now_ms)
    async with world.database.transaction() as connection:
        node_id = await seed_node(
            connection,
            world.project_id,
            provider=REAL,
            price_micros_per_hour=price_micros_per_hour,
            billing_unit_ms=billing_unit_ms,
            billed_from_ms=now_ms,
            ready_ms=now_ms,
            requested_ms=now_ms,
        )
        await seed_run(connection, world.project_id, job_id, node_id, created_ms=now_ms, running_ms=now_ms)
    return job_id
