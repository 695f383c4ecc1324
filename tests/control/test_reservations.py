"""A project has reserved GPUs of a pool: no guaranteed job of another begins on them, and spot jobs leave them for its
own."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.calendar import written
from app.db import tables as t
from app.errors import Conflict, InvalidInput, NotFound
from app.services.reservations.reserve import end_reservation, reserve
from tests.control.lending_pool import HOUR_MS, SPOT, LendingPool
from tests.control.world import World


@pytest.fixture
async def pool(world: World) -> LendingPool:
    made = LendingPool(world, gpus=4)
    await made.open()
    return made


async def reserved(
    pool: LendingPool, gpus: int = 4, *, begins_h: float | None = None, hours: float = 8, project: str = "", **more: Any
) -> str:
    world, now_ms = pool.world, pool.world.clock.now_ms()
    from_ms = None if begins_h is None else now_ms + round(begins_h * HOUR_MS)
    asked = {"pool": more.pop("named", "lab"), "gpu_type": "A100", "gpus": gpus, "from_ms": from_ms} | more
    asked.setdefault("until_ms", (from_ms or now_ms) + round(hours * HOUR_MS))
    async with world.database.transaction() as connection:
        row = await reserve(connection, world.ids, project or world.project_id, **asked, now_ms=now_ms)
    return row.reservation_id


async def kept(world: World) -> set[int]:
    return {row.gpu_index for row in await world.rows(t.reserved_gpus) if row.until_ms is None}


async def gpus_of(world: World, job_id: str) -> set[int]:
    node_id = await world.node_of(job_id)
    (row,) = [one for one in await world.rows(t.host_machines) if one.node_id == node_id]
    return set(row.gpu_indices)


async def test_what_is_reserved_waits_for_its_project_and_spot_jobs_use_it_meanwhile(pool: LendingPool) -> None:
    world = pool.world
    await reserved(pool, 4)
    other = await pool.other_project()
    stranger = await pool.submit(project=other)
    spot = await pool.submit(2, other, **SPOT)
    await pool.turn()
    assert await pool.state(stranger, spot) == ["queued", "starting"]
    assert await kept(world) == {0, 1, 2, 3}
    await pool.trains(spot, 5)

    mine = await pool.submit(4)
    await pool.turn(2)
    assert await pool.state(mine, spot) == ["queued", "checkpointing"], "it has run for no minute: no matter"
    asked = [
        row.message for row in await world.rows(t.job_events) if row.job_id == spot and row.kind == "checkpointing"
    ]
    assert asked[0].startswith("a guaranteed job of another project needs its GPUs: saves")
    await pool.leaves(spot, 6)
    await pool.turn(8)
    assert await pool.state(mine, stranger, spot) == ["starting", "queued", "waiting"]
    assert await gpus_of(world, mine) == {0, 1, 2, 3}
    await pool.check()


async def test_idle_gpus_come_before_those_of_spot_jobs(pool: LendingPool) -> None:
    world = pool.world
    await reserved(pool, 4)
    spot = await pool.runs(2, **SPOT)
    mine = await pool.submit(2)
    await pool.turn()
    assert await pool.state(mine, spot) == ["starting", "running"]
    await pool.check()
    assert (await world.job(spot)).evictions == 0


async def test_a_part_of_a_pool_is_reserved_and_the_rest_is_for_all(pool: LendingPool) -> None:
    world = pool.world
    await reserved(pool, 2)
    other = await pool.other_project()
    theirs = [await pool.submit(project=other) for _ in range(3)]
    await pool.turn()
    assert sorted(await pool.state(*theirs)) == ["queued", "starting", "starting"]
    mine = await pool.submit(2)
    await pool.turn()
    assert await pool.state(mine) == ["starting"]
    assert await gpus_of(world, mine) == await kept(world)
    await pool.check()


async def test_a_job_may_have_reserved_gpus_with_free_ones_beside_them(pool: LendingPool) -> None:
    await reserved(pool, 2)
    mine = await pool.submit(4)
    await pool.turn()
    assert await pool.state(mine) == ["starting"]
    await pool.check()


async def test_nobody_is_made_to_leave_when_a_window_begins(pool: LendingPool) -> None:
    """Guaranteed jobs of others that are there go on, and are told; what they leave is not given to others."""
    world = pool.world
    other = await pool.other_project()
    theirs = await pool.runs(3, other)
    reservation_id = await reserved(pool, 4, begins_h=1)
    await pool.turn(1)
    assert await kept(world) == set()
    world.clock.advance(ms=HOUR_MS)
    next_of_theirs = await pool.submit(1, other)
    mine = await pool.submit(4)
    await pool.turn(3)
    assert await pool.state(theirs, next_of_theirs, mine) == ["running", "queued", "queued"]
    (row,) = await world.rows(t.reservations)
    assert (row.id, row.short_gpus, row.blocked_gpus) == (reservation_id, 0, 4)
    told = [one.message for one in await world.rows(t.job_events) if one.kind == "reserved_for_others"]
    assert told == [
        f"GPUs that it runs on are reserved for another project until {written(row.until_ms)}: it goes on, and is not "
        "made to leave; nothing else of its project begins on them"
    ]
    await pool.leaves(theirs, saved=False)
    await pool.turn()
    assert await pool.state(theirs, next_of_theirs, mine) == ["succeeded", "queued", "starting"]
    (row,) = await world.rows(t.reservations)
    assert row.blocked_gpus == 0
    await pool.check()


async def test_when_it_is_over_or_ended_all_is_for_all_again(pool: LendingPool) -> None:
    world = pool.world
    other = await pool.other_project()
    first = await reserved(pool, 4, hours=1)
    theirs = await pool.submit(2, other)
    await pool.turn(2)
    world.clock.advance(ms=HOUR_MS)
    await pool.turn(4)
    assert await pool.state(theirs) == ["starting"]
    second = await reserved(pool, 2, hours=1)
    again = await pool.submit(2, other)
    await pool.turn(3)
    assert await pool.state(again) == ["queued"]
    async with world.database.transaction() as connection:
        now_ms = world.clock.now_ms()
        with pytest.raises(NotFound):
            await end_reservation(connection, other[0], second, now_ms=now_ms)
        for _ in range(2):  # twice is once
            ended = await end_reservation(connection, world.project_id, second, now_ms=now_ms)
    assert ended.ended_why == "it was ended before its time"
    await pool.turn(3)
    assert await pool.state(again) == ["starting"]
    whys = {row.id: row.ended_why for row in await world.rows(t.reservations)}
    assert whys[first] == "its window is over"
    assert await kept(world) == set()
    await pool.check()


async def test_more_than_there_is_is_refused_when_it_is_asked_for(pool: LendingPool) -> None:
    """Where windows meet, over all projects; with what quotas promise."""
    other, _ = await pool.other_project()
    await reserved(pool, 3, begins_h=1, hours=2)
    with pytest.raises(Conflict, match=r"open hosts of lab have 4, 3 of them are reserved .*; 1 are left") as refused:
        await reserved(pool, 2, project=other)
    assert refused.value.error_code == "not_reservable"
    assert await reserved(pool, 1, project=other)
    assert await reserved(pool, 4, begins_h=8, hours=1, project=other)
    with pytest.raises(Conflict, match="lab has no H100 now, so 1 x H100 cannot be kept: its open hosts have A100"):
        await reserved(pool, 1, gpu_type="H100")
    with pytest.raises(NotFound):
        await reserved(pool, 1, named="lap")


async def test_quotas_and_a_limit_leave_less_to_reserve(world: World) -> None:
    pool = LendingPool(world, gpus=4)
    await pool.open(quotas=((world.project_id, 1),), most_gpus=3)
    with pytest.raises(Conflict, match="quotas promise 1 GPUs of the pool, of which 3 may be used at once; 2 are left"):
        await reserved(pool, 3)
    await reserved(pool, 2)
    other = await pool.other_project()
    theirs = await pool.submit(2, other)
    await pool.turn(3)
    assert await pool.state(theirs) == ["queued"], "one is left below the limit"
    mine = await pool.submit(2)
    await pool.turn(3)
    assert await pool.state(mine) == ["starting"]


async def test_what_is_reserved_is_beyond_no_quota(world: World) -> None:
    """Who is sure of a part of the pool has no one leave who runs on what was reserved."""
    pool = LendingPool(world, gpus=2)
    other = await pool.other_project()
    await pool.open(quotas=((other[0], 1),))
    await reserved(pool, 1)
    mine = await pool.runs(1)
    borrows = await pool.runs(1)
    world.clock.advance(ms=120_000)
    theirs = await pool.submit(1, other)
    await pool.turn(2)
    assert await pool.state(mine, borrows, theirs) == ["running", "checkpointing", "queued"]


@pytest.mark.parametrize(
    ("from_h", "until_h", "field"),
    [
        (-1, 1, "begins_at"),
        (9000, 9001, "begins_at"),
        (1, 1, "ends_at"),
        (1, 0.5, "ends_at"),
        (0, 0.001, "ends_at"),
        (0, 32 * 24, "ends_at"),
        (0, 10**9, "ends_at"),
    ],
)
async def test_windows_that_are_none(pool: LendingPool, from_h: float, until_h: float, field: str) -> None:
    now_ms = pool.world.clock.now_ms()
    with pytest.raises(InvalidInput) as refused:
        await reserved(pool, 1, begins_h=from_h, until_ms=now_ms + round(until_h * HOUR_MS))
    assert refused.value.param == field


async def test_a_pool_that_shrinks_is_told_and_made_good_when_it_grows(pool: LendingPool) -> None:
    world = pool.world
    await reserved(pool, 4)
    await pool.turn(1)
    world.clock.advance(ms=120_000)  # the host is silent
    await world.decide()
    (row,) = await world.rows(t.reservations)
    assert (row.short_gpus, await kept(world)) == (4, {0, 1, 2, 3}), "nobody else begins there, should it come back"
    await pool.turn(2)
    (row,) = await world.rows(t.reservations)
    assert (row.short_gpus, await kept(world)) == (0, {0, 1, 2, 3})


async def test_it_survives_a_restart(pool: LendingPool) -> None:
    world = pool.world
    await reserved(pool, 4)
    await pool.turn(1)
    await world.restart()
    other = await pool.other_project()
    theirs = await pool.submit(1, other)
    await pool.turn(3)
    assert await pool.state(theirs) == ["queued"]
    assert len(await world.rows(t.reserved_gpus)) == 4
