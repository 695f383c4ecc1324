"""Two decisions never give one GPU twice: real transactions, at the same time, over separate connections."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from sqlalchemy import text

from app.control.enact import enact
from app.core.model.plan import Action, Assign
from app.db import tables as t
from tests.control.test_enact import _enact, _ready_node, _versions
from tests.control.world import World

_LOCK_S = 60.0


async def _waiting_for_a_lock(world: World) -> None:
    """Until some transaction of this database waits for another's lock."""
    question = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    until = time.monotonic() + _LOCK_S
    while time.monotonic() < until:
        async with world.database.transaction() as connection:
            if (await connection.execute(question)).scalar_one():
                return
        await asyncio.sleep(0.01)
    raise AssertionError("nobody waits: the second decision went on beside the first")


async def _assign(world: World, job_id: str, node_id: str, gpu: int) -> Assign:
    """Decided on the job's row alone: nothing but the GPU itself can make it stale."""
    return Assign(job_id, node_id, (gpu,), "the last GPU", await _versions(world, job_id))


async def test_the_last_gpu_goes_to_the_first_of_two_transactions(world: World) -> None:
    """The second waits for the node's row, then finds the GPU held, though its plan says nothing of the node's
    version: it is dropped and told, and its job waits as before."""
    first_job, second_job = await world.submit(), await world.submit()
    node_id = await _ready_node(world, first_job, gpus=1)
    first = await _assign(world, first_job, node_id, 0)
    second = await _assign(world, second_job, node_id, 0)
    context = world.control.context
    async with world.database.transaction() as connection:
        await context.leader.guard(connection)
        assert await enact(connection, context, [first], now_ms=world.clock.now_ms()) == ()
        behind = asyncio.create_task(_enact(world, second))
        await _waiting_for_a_lock(world)
    (dropped,) = await behind
    assert dropped.why == f"GPUs [0] of {node_id} are not free"
    assert ((await world.job(first_job)).state, (await world.job(second_job)).state) == ("starting", "queued")
    (held,) = await world.rows(t.allocations)
    assert held.gpu_indices == [0]


async def test_many_decisions_at_once_share_a_node_without_overlap(world: World) -> None:
    """Six transactions want the two GPUs of one node: two get one each, four are dropped."""
    jobs = [await world.submit() for _ in range(6)]
    node_id = await _ready_node(world, jobs[0], gpus=2)
    wanted: list[Action] = [await _assign(world, job_id, node_id, number % 2) for number, job_id in enumerate(jobs)]
    told = await asyncio.gather(*(_enact(world, action) for action in wanted))
    assert sum(not dropped for dropped in told) == 2
    held = [index for row in await world.rows(t.allocations) for index in row.gpu_indices]
    assert sorted(held) == [0, 1]
    states = sorted([(await world.job(job_id)).state for job_id in jobs])
    assert states == ["queued"] * 4 + ["starting"] * 2


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_is_asked_at_once_no_gpu_is_held_twice(world: World, seed: int) -> None:
    """Transactions side by side want random GPUs of two nodes: what they get is disjoint, the others are told that it
    was not free, and whatever nobody else wanted is given."""
    chance = random.Random(seed)
    jobs = [await world.submit() for _ in range(9)]
    nodes = [await _ready_node(world, jobs[0], gpus=4) for _ in range(2)]
    wanted = [
        Assign(
            job_id,
            chance.choice(nodes),
            tuple(sorted(chance.sample(range(4), chance.randint(1, 3)))),
            "some GPUs",
            await _versions(world, job_id),
        )
        for job_id in jobs
    ]
    told = await asyncio.gather(*(_enact(world, action) for action in wanted))
    held = [(row.node_id, index) for row in await world.rows(t.allocations) for index in row.gpu_indices]
    assert len(held) == len(set(held))
    for action, dropped in zip(wanted, told, strict=True):
        mine = {(action.node_id, index) for index in action.gpu_indices}
        if dropped:
            assert "are not free" in dropped[0].why
            assert mine & set(held)
        else:
            assert mine <= set(held)
    assert any(not dropped for dropped in told)
