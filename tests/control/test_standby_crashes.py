"""The control process may die after any of its statements while a job is called back: the job begins once, on GPUs that
nobody else has, and no promise is lost. By default it dies after every seventh statement, with `--sweep` after each."""

from __future__ import annotations

from tests.control.lending_pool import HOUR_MS, SPOT, LendingPool, turns_though_it_dies
from tests.control.world import World


async def test_it_comes_back_once_whatever_dies(world: World, database_url: str, sweep: bool) -> None:
    pool, stride = LendingPool(world), 1 if sweep else 7
    await pool.open()
    job_id = await pool.runs(2)
    own = await world.node_of(job_id)
    await pool.stands_by(job_id)
    spot = [await pool.submit(**SPOT), await pool.submit(**SPOT)]
    await pool.turn()
    for one in spot:
        await pool.trains(one, 5)
    world.clock.advance(ms=8 * HOUR_MS)
    assert await turns_though_it_dies(world, pool, database_url, stride) > 5 // stride
    assert (await pool.standby()).called_ms is not None
    await turns_though_it_dies(world, pool, database_url, stride)
    assert await pool.state(job_id, *spot) == ["waiting", "checkpointing", "checkpointing"]
    for one in spot:
        await pool.leaves(one, 9)
    for _ in range(4):
        await turns_though_it_dies(world, pool, database_url, stride)
    assert await pool.state(job_id, *spot) == ["starting", "waiting", "waiting"]
    assert await world.node_of(job_id) == own
    await pool.trains(job_id, 61)
    await turns_though_it_dies(world, pool, database_url, stride)
    row = await pool.standby()
    assert (row.ended_why, row.failures) == ("it trains again", 0)
    events = await world.events(job_id)
    assert [events.count(kind) for kind in ("called_back", "gpus_lent_out", "back_from_standby")] == [1, 1, 1]
    assert [(await world.job(one)).evictions for one in spot] == [1, 1]
    await pool.check()
