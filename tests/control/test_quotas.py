"""A project has what it is sure of in a pool in bounded time, whatever jobs of others follow one another there."""

from __future__ import annotations

import pytest

from allpass.wire.pools import PoolChange
from app.db import tables as t
from app.services.pools.define_pool import change_pool
from tests.control.lending_pool import HOUR_MS, SPOT, LendingPool
from tests.control.world import World


async def with_quota(world: World, gpus: int = 1) -> LendingPool:
    """One host with one GPU, of which the world's project is sure."""
    pool = LendingPool(world, gpus=gpus)
    await pool.open()
    async with world.database.transaction() as connection:
        request = PoolChange.model_validate({"quotas": {world.project_id: gpus}})
        await change_pool(connection, world.ids, "lab", request, now_ms=world.clock.now_ms())
    return pool


async def told(world: World, job_id: str, kind: str) -> list[str]:
    return [one.message for one in await world.rows(t.job_events) if (one.job_id, one.kind) == (job_id, kind)]


@pytest.mark.parametrize("kind", [{}, SPOT], ids=["borrowed", "spot"])
async def test_one_short_job_after_another_does_not_keep_it_out(world: World, kind: dict[str, object]) -> None:
    """Each of them would have its first minute; the job has waited for one, and the second of them leaves."""
    pool = await with_quota(world)
    other = await pool.other_project()
    first = await pool.runs(1, other, **kind)
    soon_ms = world.clock.now_ms() + 1
    mine = await pool.submit(1)
    second = await pool.submit(1, other, deadline_ms=soon_ms, **kind)
    await pool.turn(1)
    world.clock.advance(s=40)
    await pool.leaves(first, saved=False)
    await pool.turn(1)
    assert await pool.state(mine, second) == ["queued", "starting"]
    await pool.trains(second, step=10)
    world.clock.advance(s=19)
    await pool.turn(1)
    assert await pool.state(mine, second) == ["queued", "running"]
    world.clock.advance(s=1)
    await pool.turn(1)
    assert await pool.state(mine, second) == ["queued", "checkpointing"]
    await pool.leaves(second)
    await pool.turn()
    assert await pool.state(mine, second) == ["starting", "waiting"]
    await pool.check()


async def test_a_machine_that_nobody_uses_is_ended_for_it_and_kept_from_all_others(world: World) -> None:
    pool = await with_quota(world)
    other = await pool.other_project()
    theirs = await pool.runs(1, other)
    mine = await pool.submit(1)
    third = await pool.other_project()
    await pool.submit(1, third, deadline_ms=world.clock.now_ms() + HOUR_MS)
    await pool.leaves(theirs, saved=False)
    await pool.turn(1)
    (words,) = await told(world, mine, "evicts")
    assert words.startswith("nobody has to leave for it: 0 free and 1 freed are at least the 1 GPU that it needs there")
    assert "its project has 0 of the 1 GPUs of lab that it is sure of" in words
    await pool.turn()
    assert await pool.state(mine) == ["starting"]
    await pool.check()
