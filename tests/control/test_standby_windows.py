"""A job stands by in hours that come again: each is begun once, in its time, and none late."""

from __future__ import annotations

from typing import Any

import pytest

from app.db import tables as t
from app.errors import Conflict, InvalidInput, NotFound
from app.services.jobs.cancel_job import cancel_job
from app.services.standby.repeat_standby import end_window, repeat_standby
from tests.control.lending_pool import HOUR_MS, SPOT, LendingPool
from tests.control.world import World

DAY_MS = 24 * HOUR_MS
EVERY_DAY = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


@pytest.fixture
async def pool(world: World) -> LendingPool:
    made = LendingPool(world)
    await made.open()
    return made


async def repeats(pool: LendingPool, job_id: str, *, begins_h: int = 1, hours: int = 2, **more: Any) -> str:
    """On every day, from the minute that is so many hours from now."""
    world, now_ms = pool.world, pool.world.clock.now_ms()
    minute = now_ms // 60_000 % 1440
    asked = {"days": EVERY_DAY, "from_minute": (minute + 60 * begins_h) % 1440, "zone": "UTC"}
    asked["until_minute"] = (asked["from_minute"] + 60 * hours) % 1440
    async with world.database.transaction() as connection:
        row = await repeat_standby(connection, world.ids, world.project_id, job_id, **(asked | more), now_ms=now_ms)
    return row.window_id


async def window(world: World) -> Any:
    (row,) = await world.rows(t.standby_windows)
    return row


async def pass_time(pool: LendingPool, ms: int) -> None:
    """The host, and all that runs there, are heard of again before anything is decided."""
    pool.world.clock.advance(ms=ms)
    await pool.beat()
    await pool.host_works()
    await pool.turn(1)


async def test_each_window_is_begun_once_and_the_job_comes_back(pool: LendingPool) -> None:
    world = pool.world
    job_id = await pool.runs(2)
    window_id = await repeats(pool, job_id)
    assert await repeats(pool, job_id) == window_id, "the same hours again are the same window"
    first_ms = (await window(world)).next_from_ms
    await pool.turn(1)
    assert await world.rows(t.standbys) == []
    for number in (1, 2):
        await pass_time(pool, (await window(world)).next_from_ms - world.clock.now_ms())
        assert await pool.state(job_id) == ["checkpointing"]
        assert (await window(world)).next_from_ms == first_ms + number * DAY_MS
        await pool.leaves(job_id, 50 + 10 * number)
        await pool.turn(2)
        assert await pool.state(job_id) == ["waiting"]
        await pass_time(pool, 2 * HOUR_MS)
        await pool.turn(4)
        assert await pool.state(job_id) == ["starting"]
        await pool.trains(job_id, 51 + 10 * number)
        await pool.turn(2)
        rows = await world.rows(t.standbys)
        assert [row.ended_why for row in rows] == ["it trains again"] * number


async def test_calling_it_back_ends_that_window_and_not_the_next(pool: LendingPool) -> None:
    world = pool.world
    job_id = await pool.runs(2)
    await repeats(pool, job_id)
    await pass_time(pool, HOUR_MS)
    await pool.leaves(job_id)
    await pool.calls(job_id)
    await pool.turn(3)
    await pool.trains(job_id, 61)
    await pass_time(pool, 60_000)
    assert await pool.state(job_id) == ["running"], "the window is open, and its owner has called it back"
    assert len(await world.rows(t.standbys)) == 1


async def test_a_server_that_was_down_begins_what_is_left_and_nothing_that_is_over(pool: LendingPool) -> None:
    world = pool.world
    job_id = await pool.runs(2)
    await repeats(pool, job_id)
    first = await window(world)
    await world.restart()
    await pass_time(pool, 2 * HOUR_MS)
    (row,) = await world.rows(t.standbys)
    assert row.until_ms == first.next_until_ms, "one hour is left of it"
    await pool.calls(job_id)
    await pool.leaves(job_id)
    await pool.turn(3)
    await pool.trains(job_id, 61)
    await world.restart()
    await pass_time(pool, 2 * DAY_MS + 12 * HOUR_MS)
    assert len(await world.rows(t.standbys)) == 1, "two windows have passed meanwhile"
    assert (await window(world)).next_from_ms == first.next_from_ms + 3 * DAY_MS


async def test_one_that_cannot_be_begun_is_tried_again_while_it_is_open_and_told_once(pool: LendingPool) -> None:
    world = pool.world
    job_id = await pool.runs(1)
    await pool.runs(1)
    beside = await pool.submit(2)
    await repeats(pool, beside)
    await repeats(pool, job_id)
    await pass_time(pool, HOUR_MS)
    await pass_time(pool, 61_000)
    told = [row.message for row in await world.rows(t.job_events) if row.kind == "standby_window_waits"]
    assert len(told) == 1
    assert told[0].endswith("is queued, and only a job that runs has GPUs to lend: try again when it runs")
    assert await pool.state(job_id) == ["checkpointing"], "the other one's is begun all the same"


async def test_it_ends_with_its_job_and_by_hand(pool: LendingPool) -> None:
    world = pool.world
    job_id = await pool.runs(2)
    first = await repeats(pool, job_id)
    second = await repeats(pool, job_id, begins_h=5)
    now_ms = world.clock.now_ms()
    async with world.database.transaction() as connection:
        with pytest.raises(NotFound):
            await end_window(connection, "proj_other", first, now_ms=now_ms)
        for _ in range(2):
            assert (await end_window(connection, world.project_id, first, now_ms=now_ms)).ended_why == "it was ended"
        await cancel_job(connection, world.ids, world.project_id, job_id, now_ms=now_ms)
    ends = {row.id: row.ended_why for row in await world.rows(t.standby_windows)}
    assert ends == {first: "it was ended", second: "its job is over"}
    with pytest.raises(Conflict):
        await repeats(pool, job_id)


async def test_what_cannot_be_a_window(pool: LendingPool) -> None:
    job_id = await pool.submit(1)
    for wrong in ({"days": ["mon", "mon"]}, {"zone": "Mars/Phobos"}, {"from_minute": 5, "until_minute": 5}):
        with pytest.raises(InvalidInput):
            await repeats(pool, job_id, **wrong)
    spot = await pool.submit(1, **SPOT)
    with pytest.raises(Conflict, match="it is a spot job"):
        await repeats(pool, spot)
    for number in range(20):
        await repeats(pool, job_id, hours=1 + number % 2, begins_h=number)
    with pytest.raises(Conflict, match="as many as there can be"):
        await repeats(pool, job_id, hours=7)
