"""A guaranteed job stands by: its GPUs are lent, come back, and are never two jobs' at once."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from app.core.billing import accrued
from app.core.model.money import Money
from app.core.standby import PATIENCE_MS
from app.db import tables as t
from app.db.standby.standbys import rebates_of, standbys_of
from app.errors import Conflict, InvalidInput, NotFound
from app.services.jobs.cancel_job import cancel_job
from app.services.jobs.pause_job import pause_job
from app.services.jobs.resume_job import resume_job
from tests.control.lending_pool import HOUR_MS, PRICE, SPOT, LendingPool
from tests.control.world import World


@pytest.fixture
async def pool(world: World) -> LendingPool:
    made = LendingPool(world)
    await made.open()
    return made


async def test_its_gpus_go_to_spot_jobs_of_any_project_and_it_comes_back_to_its_machine(pool: LendingPool) -> None:
    """At the end of its window: who is there is asked to save, its machine ends, and the job begins where it left."""
    world = pool.world
    job_id = await pool.runs(2)
    own = await world.node_of(job_id)
    other = await pool.other_project()
    spot = [await pool.submit(project=other, **SPOT), await pool.submit(**SPOT)]
    await pool.turn(2)
    assert await pool.state(*spot) == ["queued", "queued"]
    await pool.lends(job_id)
    assert await pool.state(job_id) == ["checkpointing"]
    await pool.leaves(job_id)
    await pool.turn()
    for one in spot:
        await pool.trains(one, 5)
    assert await pool.state(job_id, *spot) == ["waiting", "running", "running"]
    assert (await world.job(job_id)).wait_reason.startswith("stands by: spot jobs use 2 of its 2 GPUs, until 20")
    assert own not in {await world.node_of(one) for one in spot}
    await pool.check()

    world.clock.advance(ms=8 * HOUR_MS)
    await pool.turn(1)
    await pool.turn(1)
    assert await pool.state(job_id, *spot) == ["waiting", "checkpointing", "checkpointing"]
    events = [row for row in await world.rows(t.job_events) if row.job_id in spot]
    asked = [row.message for row in events if row.kind == "checkpointing"]
    assert all(one.startswith("the job that has lent these GPUs is called back: saves") for one in asked)
    await pool.leaves(spot[0], 9)
    await pool.turn(3)
    assert (await world.job(job_id)).wait_reason == "comes back as soon as spot jobs have left 1 of its 2 GPUs"
    await pool.leaves(spot[1], 9)
    await pool.turn()
    assert await pool.state(job_id, *spot) == ["starting", "waiting", "waiting"]
    assert await world.node_of(job_id) == own
    await pool.trains(job_id, 60)
    await pool.turn(1)
    assert (await pool.standby()).ended_ms is None
    await pool.trains(job_id, 61)
    await pool.turn(1)
    row = await pool.standby()
    assert (row.ended_why, row.left_step, row.failures) == ("it trains again", 60, 0)
    assert [(await world.job(one)).evictions for one in spot] == [1, 1]
    await pool.check()


async def test_its_owner_calls_it_back_before(pool: LendingPool) -> None:
    """From then on nothing new is given its GPUs. Calling twice is calling once."""
    world = pool.world
    job_id = await pool.runs(2)
    await pool.stands_by(job_id)
    await pool.turn(2)
    await pool.calls(job_id)
    await pool.calls(job_id)
    spot = await pool.submit(**SPOT)
    await pool.turn(3)
    assert await pool.state(job_id, spot) == ["starting", "queued"]
    assert (await world.events(job_id)).count("called_back") == 1
    await pool.trains(job_id, 61)
    await pool.turn(1)
    (told,) = [row for row in await world.rows(t.job_events) if row.kind == "back_from_standby"]
    assert told.message.startswith("trains again ")
    assert told.data["took_ms"] >= 0


async def test_no_guaranteed_job_is_given_what_is_lent(pool: LendingPool) -> None:
    """Neither a machine of its own, nor a place beside a spot job of its project, nor one that a spot job leaves."""
    world = pool.world
    job_id = await pool.runs(2)
    await pool.stands_by(job_id)
    spot = await pool.submit(**SPOT)
    await pool.turn()
    await pool.trains(spot, 5)
    wants = await pool.submit()
    world.clock.advance(ms=HOUR_MS)
    await pool.turn(4)
    assert await pool.state(wants, spot, job_id) == ["queued", "running", "waiting"]
    await pool.leaves(spot, saved=False)
    assert await pool.state(spot) == ["succeeded"]
    await pool.turn(4)
    assert await pool.state(wants, job_id) == ["queued", "waiting"]
    await pool.calls(job_id)
    await pool.turn(6)
    assert await pool.state(wants, job_id) == ["queued", "starting"]
    await pool.check()


async def test_what_is_not_lent_is_given_to_guaranteed_jobs_as_before(world: World) -> None:
    pool = LendingPool(world, gpus=4)
    await pool.open()
    job_id = await pool.runs(2)
    await pool.stands_by(job_id)
    spot = [await pool.submit(**SPOT), await pool.submit(**SPOT)]
    await pool.turn()
    wants = await pool.submit(2)
    await pool.turn()
    assert await pool.state(wants, *spot) == ["starting"] * 3, "spot jobs are on what is lent, not on what is free"
    await pool.check()


async def test_a_window_that_ends_before_it_has_left_brings_it_back_at_once(pool: LendingPool) -> None:
    job_id = await pool.runs(2)
    await pool.lends(job_id)
    await pool.calls(job_id)
    await pool.turn(1)
    await pool.leaves(job_id)
    await pool.turn(2)
    assert await pool.state(job_id) == ["starting"]
    await pool.check()


async def test_the_window_may_be_changed_while_it_stands_by(pool: LendingPool) -> None:
    world = pool.world
    job_id = await pool.runs(2)
    await pool.stands_by(job_id)
    await pool.lends(job_id, hours=1)
    await pool.lends(job_id, hours=1)
    world.clock.advance(ms=HOUR_MS)
    await pool.turn(3)
    assert await pool.state(job_id) == ["starting"]
    assert (await world.events(job_id)).count("stands_by") == 2
    with pytest.raises(Conflict, match="is called back already"):
        await pool.lends(job_id)


# Ends that are none of its own


async def test_a_job_that_is_cancelled_or_paused_gives_its_machine_up_and_no_gpu_has_two(pool: LendingPool) -> None:
    world = pool.world
    job_id = await pool.runs(2)
    own = await world.node_of(job_id)
    await pool.stands_by(job_id)
    spot = await pool.submit(2, **SPOT)
    await pool.turn()
    async with world.database.transaction() as connection:
        await pause_job(connection, world.ids, world.project_id, job_id, now_ms=world.clock.now_ms())
    await pool.turn()
    row, node = await pool.standby(), await world.node(own)
    assert (row.ended_why, node.state) == ("its job is paused", "terminated")
    assert await pool.state(job_id, spot) == ["paused", "starting"]
    await pool.check()
    async with world.database.transaction() as connection:
        await resume_job(connection, world.project_id, job_id, now_ms=world.clock.now_ms())
    await pool.trains(spot, 5)
    world.clock.advance(ms=2 * 60_000)
    await pool.turn(3)
    assert await pool.state(job_id, spot) == ["waiting", "checkpointing"], "it is a guaranteed job like any other"


async def test_one_that_ends_while_it_saves_lends_nothing(pool: LendingPool) -> None:
    world = pool.world
    job_id = await pool.runs(2)
    await pool.lends(job_id)
    await pool.leaves(job_id, saved=False)  # it was done
    await pool.turn(2)
    assert await pool.state(job_id) == ["succeeded"]
    assert (await pool.standby()).ended_why == "its job has succeeded"
    wants = await pool.submit(2)
    await pool.turn()
    assert await pool.state(wants) == ["starting"]
    await world.check_invariants()


async def test_a_cancelled_job_that_stands_by_is_over(pool: LendingPool) -> None:
    world = pool.world
    job_id = await pool.runs(2)
    await pool.stands_by(job_id)
    await pool.turn(2)
    async with world.database.transaction() as connection:
        await cancel_job(connection, world.ids, world.project_id, job_id, now_ms=world.clock.now_ms())
    await pool.turn()
    assert (await pool.standby()).ended_why == "its job has cancelled"
    wants = await pool.submit(2)
    await pool.turn()
    assert await pool.state(job_id, wants) == ["cancelled", "starting"]


async def test_a_machine_that_is_lost_loses_no_job(pool: LendingPool) -> None:
    """It goes on elsewhere, as any job of a machine that is gone."""
    world = pool.world
    job_id = await pool.runs(2)
    own = await world.node_of(job_id)
    await pool.stands_by(job_id)
    await pool.turn(2)
    machines = pool._machines[pool.host_id]
    (machine,) = [one for one, state in machines.items() if state == "running"]
    machines[machine] = "ended"
    await pool.turn()
    row = await pool.standby()
    assert row.ended_why == "its machine is not there any more; it goes on elsewhere"
    assert await pool.state(job_id) == ["starting"]
    assert await world.node_of(job_id) != own
    await pool.check()


async def test_who_is_not_let_back_in_time_goes_on_elsewhere(pool: LendingPool) -> None:
    """Its GPUs are held by a machine that its host does not end: a fault of ours, which costs the job its place."""
    world = pool.world
    job_id = await pool.runs(2)
    await pool.stands_by(job_id)
    spot = await pool.submit(2, **SPOT)
    await pool.turn()
    await pool.trains(spot, 5)
    pool.slow = True
    await pool.calls(job_id)
    await pool.turn(2)
    await pool.leaves(spot, 9)
    await pool.turn(2)
    assert await pool.state(job_id) == ["waiting"]
    world.clock.advance(ms=PATIENCE_MS)
    await pool.turn(2)
    pool.slow = False
    await pool.turn(8)
    assert (await pool.standby()).ended_why.startswith("its GPUs were not given back in time, a fault of the service")
    assert (await pool.state(job_id))[0] in ("starting", "running")
    await pool.check()


async def test_a_failure_to_begin_again_is_no_fault_of_the_job(pool: LendingPool) -> None:
    """Once it is tried there again, then elsewhere; and what fails there too is judged as the job's own."""
    world = pool.world
    job_id = await pool.runs(2)
    own = await world.node_of(job_id)
    await pool.stands_by(job_id)
    await pool.turn(1)
    await pool.calls(job_id)
    for _ in range(2):
        await pool.turn(3)
        assert await world.node_of(job_id) == own
        await pool.leaves(job_id, saved=False, exit_code=1)
        assert await pool.state(job_id) == ["waiting"]
    await pool.turn()
    assert await world.node_of(job_id) != own
    assert (await world.job(job_id)).faults == 0
    assert (await pool.standby()).ended_why == "it could not begin again there; it goes on elsewhere"
    await pool.leaves(job_id, saved=False, exit_code=1)
    assert await pool.state(job_id) == ["failed"]


# Who may not


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"saves_ms": None}, "does not say that it saves when it is asked to.*allpass.training.*lose_steps: true"),
        ({"priority_class": "spot"}, "it is a spot job"),
    ],
)
async def test_who_has_nothing_to_lend_is_told_why(pool: LendingPool, columns: dict[str, Any], why: str) -> None:
    job_id = await pool.runs(1)
    await pool.world.set_job(job_id, **columns)
    with pytest.raises(Conflict, match=why) as refused:
        await pool.lends(job_id)
    assert refused.value.error_code == "not_lendable"
    assert await pool.world.rows(t.standbys) == []
    assert await pool.state(job_id) == ["running"]


async def test_one_that_may_begin_again_is_lent_when_its_owner_says_so(pool: LendingPool) -> None:
    job_id = await pool.runs(1)
    await pool.world.set_job(job_id, saves_ms=None)
    await pool.lends(job_id, lose_steps=True)
    assert await pool.state(job_id) == ["checkpointing"]


async def test_a_window_is_neither_past_nor_without_end_nor_longer_than_the_job(pool: LendingPool) -> None:
    job_id = await pool.runs(1)
    for hours in (-1, 0.01, 7 * 24 + 1):
        with pytest.raises(InvalidInput, match="between a minute and seven days") as refused:
            await pool.lends(job_id, hours=hours)
        assert refused.value.param == "until"
    await pool.world.set_job(job_id, max_duration_ms=HOUR_MS)
    with pytest.raises(Conflict, match="its max_duration is over"):
        await pool.lends(job_id)
    with pytest.raises(NotFound):
        await pool.lends("job_00000000000000000000")
    with pytest.raises(Conflict, match="does not stand by"):
        await pool.calls(job_id)


async def test_a_job_beside_others_of_its_project_has_no_machine_to_lend(world: World) -> None:
    pool = LendingPool(world)
    await pool.open()
    job_id, beside = await pool.runs(2), await pool.submit()
    own = await world.node_of(job_id)
    async with world.database.transaction() as connection:
        await connection.execute(update(t.allocations).values(gpu_indices=[0]))
    await pool.turn(3)
    assert await world.node_of(beside) == own
    with pytest.raises(Conflict, match="other jobs run on its machine"):
        await pool.lends(job_id)


async def test_what_is_borrowed_is_not_lent_on_and_what_is_lent_stays_the_projects(pool: LendingPool) -> None:
    """In a pool with quotas a project that lends what it is sure of is still using it; others cannot take it."""
    world = pool.world
    other = await pool.other_project()
    job_id = await pool.runs(1)
    async with world.database.transaction() as connection:
        await connection.execute(update(t.pools).values(quotas={other[0]: 2}))
    with pytest.raises(Conflict, match="beyond its project's quota"):
        await pool.lends(job_id)
    async with world.database.transaction() as connection:
        await connection.execute(update(t.pools).values(quotas={world.project_id: 1, other[0]: 1}))
    await pool.stands_by(job_id)
    spot = await pool.submit(**SPOT)
    await pool.turn()
    await pool.trains(spot, 5)
    theirs = [await pool.submit(project=other), await pool.submit(project=other)]
    world.clock.advance(ms=HOUR_MS)
    await pool.turn()
    assert await pool.state(spot, *theirs) == ["running", "starting", "queued"]
    await pool.calls(job_id)
    await pool.turn(2)
    await pool.leaves(spot, 9)
    await pool.turn()
    assert await pool.state(job_id) == ["starting"]
    await pool.check()


# Money


@pytest.mark.parametrize("parts", [500_000, 1_000_000, 0, 333_333])
async def test_its_time_is_paid_less_the_rebate_to_the_micro_dollar(world: World, parts: int) -> None:
    """However often the meter is read; lines and rebates are what the machine costs."""
    pool = LendingPool(world, gpus=1)
    await pool.open(rebate_parts=parts)
    job_id = await pool.runs(1)
    own = await world.node_of(job_id)
    await world.sweep()
    world.clock.advance(ms=12_345)
    await pool.stands_by(job_id)
    left_ms = world.clock.now_ms()
    await pool.turn(1)
    for after_ms in (1, 1_001, 59_999, 7_777_777):
        world.clock.advance(ms=after_ms)
        await pool.beat()
        await world.meter()
    await pool.calls(job_id)
    await pool.turn(1)
    (begun,) = [row for row in await world.rows(t.allocations) if row.to_ms is None]
    world.clock.advance(ms=10_000)
    await pool.trains(job_id, 61)
    await pool.turn(1)
    await world.meter()
    async with world.database.transaction() as connection:
        (row,) = await standbys_of(connection, job_id)
        paid, rebate = (await rebates_of(connection, [row]))[row.standby_id]
    node = await world.node(own)
    full = accrued(PRICE, node.billed_from_ms, begun.from_ms) - accrued(PRICE, node.billed_from_ms, left_ms)
    assert Money(paid + rebate) == full
    assert paid == full.micros * (1_000_000 - parts) // 1_000_000
    lines = [line for line in await world.rows(t.ledger) if line.node_id == own]
    assert sum(line.amount_micros + line.discount_micros for line in lines) == node.metered_micros
    assert all(line.discount_micros == 0 for line in lines if line.payer != "idle")
    assert all(line.amount_micros >= 0 <= line.discount_micros for line in lines)
