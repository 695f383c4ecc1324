"""Budgets of a project, of a key, of a provider: jobs save and pause, wait, and go on by themselves."""

from __future__ import annotations

import random
from typing import Any

import pytest
from sqlalchemy import update

from app.core.budgets import ends_ms
from app.core.calendar import DAY_MS, HOUR_MS
from app.core.model.budget import Budget, Period
from app.core.model.health import Chore
from app.core.model.money import Money
from app.db import tables as t
from app.db.money.budgets import budgets_now, delete_budget, set_budget
from app.db.tables import budgets, spending
from app.db.unreadable import RowReading
from app.services.jobs.resume_job import resume_job
from tests.control.fake_provider import FakeProvider, make_offer
from tests.control.poison import poison
from tests.control.world import World
from tests.seeds import new_id, seed_job, seed_node, seed_project, seed_run

KEY = new_id("key")
HERE = "cloud"


async def settle(world: World, micros: int | None, **whose: Any) -> str:
    """A budget of the project for a day, unless said otherwise; None takes it away."""
    project = {"project_id": world.project_id, "key_id": None, "provider": None, "period": Period.DAY} | whose
    one = Budget(budget_id=world.ids.new("bud"), amount=Money(micros or 0), **project)
    async with world.database.transaction() as connection:
        budget_id = await set_budget(connection, one, set_by=KEY, now_ms=world.clock.now_ms())
        if micros is None:
            await delete_budget(connection, budget_id)
    return budget_id


async def spent(world: World) -> list[int]:
    """Of each budget, by id."""
    async with world.database.transaction() as connection:
        return [one.spent.micros for one in await budgets_now(connection, RowReading(), now_ms=world.clock.now_ms())]


async def live(world: World, *, s: int) -> None:
    """Machines call home and the meter is read, every ten seconds."""
    for _ in range(s // 10):
        world.clock.advance(s=10)
        for node in await world.rows(t.nodes):
            if node.state == "ready":
                await world.beat(node.id)
        await world.meter()


async def to_the_beginning(world: World, period: Period) -> None:
    """Some seconds into a period, so that a test does not meet its end."""
    now_ms = world.clock.now_ms()
    world.clock.advance(ms=ends_ms(period, now_ms) + 5000 - now_ms)


async def messages(world: World, job_id: str, kind: str) -> list[str]:
    return [row.message for row in await world.rows(t.job_events) if row.job_id == job_id and row.kind == kind]


@pytest.mark.parametrize("period", Period)
async def test_a_job_saves_and_pauses_and_goes_on_in_the_next_period(world: World, period: Period) -> None:
    """What is spent is at most the budget and what one tick of the meter costs. It goes on from its checkpoint, by
    itself, with another control process; the machine has ended meanwhile, and nothing is rented for it."""
    await to_the_beginning(world, period)
    await settle(world, 100_000, period=period)
    job_id, node_id = await world.run_on_serverless()
    price = (await world.node(node_id)).price_micros_per_hour
    for _ in range(100):
        await live(world, s=10)
        if (await world.job(job_id)).state == "checkpointing":
            break
    (told,) = await messages(world, job_id, "run_stopping")
    assert told.startswith(f"the project's budget of $0.10 a{'n' if period is Period.HOUR else ''} {period} is used up")
    assert "saves at the next step" in told
    assert (await spent(world))[0] <= 100_000 + price * 10 // 3600 + 1
    await world.report(node_id, "exited", exit_code=75, saved_after_stop=True)
    assert (await world.job(job_id)).state == "paused"
    await world.meter()
    job = await world.job(job_id)
    assert (job.state, job.pause_reason) == ("paused", "budget")
    assert "goes on by itself at 2027-" in job.wait_reason
    assert f"allpass budget set --period {period} --amount DOLLARS" in job.wait_reason
    await world.work()
    await world.decide()
    await world.work()
    assert world.cloud.alive() == []

    left_ms = ends_ms(period, world.clock.now_ms()) - world.clock.now_ms()
    world.clock.advance(ms=left_ms - 1)
    await world.meter()
    assert (await world.job(job_id)).state == "paused"
    world.clock.advance(ms=1)
    await world.restart()
    await world.meter()
    job = await world.job(job_id)
    assert (job.state, job.pause_reason, job.wait_reason) == ("waiting", None, None)
    await world.decide()
    await world.work()
    assert len(world.cloud.alive()) == 1
    await world.check_invariants()


async def test_a_queued_job_waits_with_the_reason_and_goes_on_when_more_is_allowed(world: World) -> None:
    """It is not paused, and it is not rented for; a job of another project is served meanwhile. A budget of nothing
    keeps everything from beginning."""
    await settle(world, 0)
    async with world.database.transaction() as connection:
        other = await seed_job(connection, await seed_project(connection), submitted_ms=world.clock.now_ms())
    job_id = await world.submit()
    await world.decide()
    await world.work()
    job = await world.job(job_id)
    assert (job.state, job.pause_reason) == ("queued", None)
    assert "the project's budget of $0.00 a day is used up: goes on by itself at 20" in job.wait_reason
    assert (await world.job(other)).state == "starting"
    await settle(world, 10_000_000)
    await world.decide()
    assert (await world.job(job_id)).state == "starting"


async def test_raising_a_budget_lets_a_job_go_on_at_once(world: World) -> None:
    """Also one that still saves; one that its own limit holds meanwhile stays paused for that. Taking the budget away
    does the same. An owner who resumes it gets it waiting, and it is told for what."""
    job_id, node_id = await world.run_on_serverless()
    await settle(world, 1)
    await live(world, s=10)
    assert (await world.job(job_id)).pause_reason == "budget"
    await settle(world, 10_000_000)
    await world.meter()
    job = await world.job(job_id)
    assert (job.state, job.pause_reason) == ("checkpointing", None)
    await settle(world, 1)
    await world.meter()
    await world.report(node_id, "exited", exit_code=75, saved_after_stop=True)
    assert (await world.job(job_id)).state == "paused"
    async with world.database.transaction() as connection:
        await resume_job(connection, world.project_id, job_id, now_ms=world.clock.now_ms())
    await world.decide()
    job = await world.job(job_id)
    assert job.state == "waiting"
    assert "budget of $0.000001 a day is used up" in job.wait_reason
    await world.set_job(job_id, state="paused", pause_reason="budget", max_cost_micros=1)
    await settle(world, None)
    await world.meter()
    job = await world.job(job_id)
    assert (job.state, job.pause_reason) == ("paused", "cost_cap")


async def test_a_budget_below_what_is_spent_holds_from_the_next_look_on(world: World) -> None:
    """What is left is nothing, not less, and a job that runs is asked to save."""
    await settle(world, 10_000_000)
    job_id, _node_id = await world.run_on_serverless()
    await live(world, s=60)
    assert (await world.job(job_id)).state == "running"
    await settle(world, 10)
    await world.meter()
    assert (await world.job(job_id)).state == "checkpointing"


async def test_two_budgets_hold_both_and_who_waits_is_told_of_the_one_that_lasts(world: World) -> None:
    """An hour that turns helps nothing while the month's is used up; raising that one does."""
    await to_the_beginning(world, Period.HOUR)
    job_id, node_id = await world.run_on_serverless()
    await live(world, s=20)
    await settle(world, 1, period=Period.HOUR)
    await world.meter()
    await world.report(node_id, "exited", exit_code=75, saved_after_stop=True)
    await world.meter()
    assert "an hour is used up" in (await world.job(job_id)).wait_reason
    await settle(world, 2, period=Period.MONTH)
    await world.meter()
    assert "a month is used up" in (await world.job(job_id)).wait_reason
    await world.work()
    world.clock.advance(ms=HOUR_MS)
    await world.meter()
    assert (await world.job(job_id)).state == "paused"
    await settle(world, 10_000_000, period=Period.MONTH)
    await world.meter()
    assert (await world.job(job_id)).state == "waiting"


async def test_a_key_s_budget_holds_its_jobs_alone(world: World) -> None:
    """Also when the key is revoked, and when it is gone: its jobs count by its id. What boots for a held job ends."""
    await settle(world, 0, key_id=KEY)
    held, free = await world.submit(key_id=KEY), await world.submit()
    await world.decide()
    await world.work()
    assert "for key_" in (await world.job(held)).wait_reason
    assert (await world.job(free)).state == "starting"
    running = await world.submit(state="running", epoch=1, key_id=KEY, saves_ms=1)
    async with world.database.transaction() as connection:
        now_ms = world.clock.now_ms()
        at = {"provider": HERE, "requested_ms": now_ms, "billed_from_ms": now_ms}
        node_id = await seed_node(connection, world.project_id, rented_for_job_id=running, **at)
        await seed_run(connection, world.project_id, running, node_id)
        boots = await seed_node(connection, world.project_id, rented_for_job_id=held, state="booting", **at)
        kept = await seed_node(connection, world.project_id, rented_for_job_id=held, **at)
    await live(world, s=10)
    assert (await world.job(running)).pause_reason == "budget"
    assert (await world.job(free)).pause_reason is None
    states = {row.id: row.state for row in await world.rows(t.nodes)}
    assert (states[boots], states[kept], states[node_id]) == ("terminating", "ready", "ready")


async def test_at_another_provider_a_job_goes_on(world: World) -> None:
    """Its machine's provider has nothing left: it saves, leaves, and is placed where there is. Idle machines of the
    provider end, those of others do not."""
    other = FakeProvider(world.clock, name="dear")
    other.on_offer = [make_offer("dear", "fn", one.tier, "9.00", startup_ms=1) for one in world.cloud.on_offer[:1]]
    world.other_clouds = [other]
    await world.restart()
    job_id, node_id = await world.run_on_serverless()
    async with world.database.transaction() as connection:
        idle = await seed_node(connection, world.project_id, provider=HERE)
        elsewhere = await seed_node(connection, world.project_id, provider="dear")
    await settle(world, 1, provider=HERE)
    await live(world, s=10)
    assert (await world.job(job_id)).pause_reason == "budget"
    assert (await world.node(idle)).state == "terminating"
    assert (await world.node(elsewhere)).state == "ready"
    await world.report(node_id, "exited", exit_code=75, saved_after_stop=True)
    await world.meter()
    assert (await world.job(job_id)).state == "waiting"
    assert "has left the provider" in (await messages(world, job_id, "resumed"))[-1]
    await world.decide()
    await world.work()
    assert (await world.node(await world.node_of(job_id))).provider == "dear"


async def test_an_installation_s_budget_holds_all_projects(world: World) -> None:
    """And tells no project what others have spent."""
    job_id, _node_id = await world.run_on_serverless()
    await settle(world, 5, project_id=None, period=Period.MONTH)
    waits = await world.submit()
    await live(world, s=10)
    assert (await world.job(job_id)).pause_reason == "budget"
    await world.decide()
    told = (await world.job(waits)).wait_reason
    assert "the installation's budget of $0.000005 a month is used up" in told
    assert "an owner of the installation" in told


async def test_of_two_machines_of_one_plan_the_second_is_checked_again(world: World) -> None:
    """The first billing unit of either fits, of both does not: one is rented, and the other job waits for room there.
    The same is not tried again and again."""
    world.cloud.on_offer = world.cloud.on_offer[1:]  # a second of it is 200 micro-dollars
    await settle(world, 300)
    jobs = [await world.submit() for _ in range(2)]
    for _ in range(3):
        await world.decide()
    assert len(await world.rows(t.nodes)) == 1
    assert all([(await world.job(job_id)).wait_reason for job_id in jobs])
    dropped = [kind for job_id in jobs for kind in await world.events(job_id) if kind == "action_dropped"]
    assert len(dropped) <= 1


async def test_four_fifths_are_told_once_in_a_period(world: World) -> None:
    """Each job that runs, in an event, with the moment and the command; one that never saves, with what it will lose.
    Anew in the next period, and after a change of the budget."""
    await to_the_beginning(world, Period.DAY)
    world.saves_when_asked = False
    job_id, node_id = await world.run_on_serverless()
    price = (await world.node(node_id)).price_micros_per_hour
    await live(world, s=60)
    done = (await world.ledger_sum()) + price * 60 // 3600
    await settle(world, done * 10 // 9)
    await live(world, s=60)
    (told,) = await messages(world, job_id, "budget_near")
    assert "is nearly used up, and when it is, this job pauses; " in told
    assert "allpass budget set --period day" in told
    assert (await world.job(job_id)).state == "running"
    await settle(world, done * 10 // 9 + 1)
    await world.meter()
    await world.meter()
    assert len(await messages(world, job_id, "budget_near")) == 2


async def test_a_job_that_never_saved_is_told_what_it_loses(world: World) -> None:
    """As with a cost cap: it is not pretended that it saves."""
    world.saves_when_asked = False
    job_id, _node_id = await world.run_on_serverless()
    await live(world, s=60)
    await settle(world, 1)
    await world.meter()
    (told,) = await messages(world, job_id, "run_stopping")
    assert "leaves and is paused; " in told
    assert "saves" not in told.partition(" is paused; ")[0]


async def test_a_clock_that_jumps_changes_the_period_and_nothing_else(world: World) -> None:
    """Forward, the job goes on as in a new period; back, what was spent in the old one counts again."""
    await to_the_beginning(world, Period.DAY)
    await settle(world, 1000)
    job_id, node_id = await world.run_on_serverless()
    await live(world, s=20)
    await world.report(node_id, "exited", exit_code=75, saved_after_stop=True)
    await world.meter()
    assert (await world.job(job_id)).state == "paused"
    await world.work()
    world.clock.advance(ms=400 * DAY_MS)
    assert await spent(world) == [0]
    await world.control.do(Chore.BUDGETS)
    assert (await world.job(job_id)).state == "waiting"
    world.clock.advance(ms=-400 * DAY_MS)
    await world.decide()
    job = await world.job(job_id)
    assert (job.state, "is used up" in job.wait_reason) == ("waiting", True)


async def test_one_bad_job_and_one_bad_budget_keep_no_other_from_being_held(world: World) -> None:
    """Writing the one fails, and the other is of a period that nobody knows: they are counted as failures, the others
    pause, and decisions are made."""
    held = [(await world.run_on_serverless())[0] for _ in range(3)]
    bad = await settle(world, 1, provider=HERE)
    async with world.database.transaction() as connection:
        await connection.execute(update(budgets).where(budgets.c.id == bad).values(period="fortnight"))
    await settle(world, 1)
    await poison(world, "jobs", held[1])
    assert await world.control.do(Chore.BUDGETS) == 2
    assert [(await world.job(job_id)).pause_reason for job_id in held] == ["budget", None, "budget"]
    await world.decide()


async def test_what_an_older_release_books_counts(world: World) -> None:
    """It knows nothing of budgets: its rows of jobs have no key, and its lines of the ledger add up all the same."""
    job_id, node_id = await world.run_on_serverless()
    await live(world, s=60)
    async with world.database.transaction() as connection:
        await connection.execute(
            t.ledger.insert().values(
                project_id=world.project_id,
                node_id=node_id,
                job_id=job_id,
                payer="run",
                from_ms=world.clock.now_ms() - 1000,
                to_ms=world.clock.now_ms(),
                amount_micros=5_000_000,
            )
        )
    assert {row.key_id for row in await world.rows(spending)} == {""}
    await settle(world, 5_000_000)
    await world.meter()
    assert (await world.job(job_id)).pause_reason == "budget"


@pytest.mark.parametrize("seed", range(2))
async def test_many_jobs_at_once_spend_at_most_one_tick_more(world: World, seed: int) -> None:
    """At prices by chance, of two keys, with budgets of all three kinds. What is spent when all are asked to save is at
    most each budget and one tick of all their prices; nobody outside the budget is asked."""
    chance = random.Random(seed)
    await to_the_beginning(world, Period.DAY)
    keys = [KEY, new_id("key")]
    prices = {key: [chance.randrange(200_000, 4_000_000) for _ in range(20)] for key in keys}
    jobs = {key: [await running_at(world, price, key) for price in prices[key]] for key in keys}
    most = chance.randrange(200_000, 600_000)
    await settle(world, most, key_id=KEY, period=chance.choice(list(Period)), provider=chance.choice([None, HERE]))
    for _ in range(1000):
        await live(world, s=10)
        if (await world.job(jobs[KEY][0])).pause_reason is not None:
            break
    assert {(await world.job(job_id)).pause_reason for job_id in jobs[KEY]} == {"budget"}
    assert {(await world.job(job_id)).pause_reason for job_id in jobs[keys[1]]} == {None}
    booked = sum(row.amount_micros for row in await world.rows(spending) if (row.period, row.key_id) == ("day", KEY))
    assert 0 < booked <= most + sum(prices[KEY]) * 10 // 3600 + len(prices[KEY])


async def running_at(world: World, price_micros_per_hour: int, key_id: str) -> str:
    """A job whose code runs on a machine of its own, which was rented now."""
    now_ms = world.clock.now_ms()
    job_id = await world.submit(state="running", epoch=1, first_running_ms=now_ms, saves_ms=now_ms, key_id=key_id)
    begun = {"billed_from_ms": now_ms, "ready_ms": now_ms, "requested_ms": now_ms}
    async with world.database.transaction() as connection:
        node_id = await seed_node(
            connection,
            world.project_id,
            provider=HERE,
            price_micros_per_hour=price_micros_per_hour,
            rented_for_job_id=job_id,
            **begun,
        )
        await seed_run(connection, world.project_id, job_id, node_id, created_ms=now_ms, running_ms=now_ms)
        await connection.execute(update(t.allocations).where(t.allocations.c.node_id == node_id).values(from_ms=now_ms))
    return job_id
