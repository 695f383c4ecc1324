"""The control process may die after any statement while a window begins, spot jobs leave for whom it is kept, and
it ends: nothing is kept twice, or for ever. By default it dies after every seventh statement, with `--sweep` each."""

from __future__ import annotations

from app.db import tables as t
from app.services.reservations.reserve import reserve
from tests.control.lending_pool import HOUR_MS, SPOT, LendingPool, turns_though_it_dies
from tests.control.world import World


async def test_a_window_is_kept_once_whatever_dies(world: World, database_url: str, sweep: bool) -> None:
    pool, stride = LendingPool(world, gpus=2), 1 if sweep else 7
    await pool.open()
    other = await pool.other_project()
    theirs, spot = await pool.runs(1, other), await pool.runs(1, **SPOT)
    now_ms = world.clock.now_ms()
    asked = {"pool": "lab", "gpu_type": "A100", "gpus": 2, "from_ms": None, "until_ms": now_ms + HOUR_MS}
    async with world.database.transaction() as connection:
        await reserve(connection, world.ids, world.project_id, **asked, now_ms=now_ms)
    mine = await pool.submit(1)
    died = 0
    for _ in range(3):
        died += await turns_though_it_dies(world, pool, database_url, stride)
    assert died > 10 // stride
    assert await pool.state(theirs, spot, mine) == ["running", "checkpointing", "queued"]
    kept = [(row.gpu_index, row.until_ms) for row in await world.rows(t.reserved_gpus)]
    assert sorted(kept) == [(0, None), (1, None)]
    assert (await world.events(theirs)).count("reserved_for_others") == 1
    await pool.leaves(spot, 9)
    for _ in range(4):
        await turns_though_it_dies(world, pool, database_url, stride)
    assert await pool.state(theirs, spot, mine) == ["running", "waiting", "starting"]
    assert (await world.job(spot)).evictions == 1
    world.clock.advance(ms=HOUR_MS)
    await turns_though_it_dies(world, pool, database_url, stride)
    (row,) = await world.rows(t.reservations)
    assert row.ended_why == "its window is over"
    assert all(one.until_ms is not None for one in await world.rows(t.reserved_gpus))
    await pool.check()
