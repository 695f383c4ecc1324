"""How long a job that leaves a pool for another job has to save: what its agent is told, and what is counted with."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert, update

from app.core.model.node import Tier
from app.core.model.pool import JOINED
from app.db.jobs.reads import find_job
from app.db.jobs.set_asides import START_MS
from app.db.runs.desired_state import orders
from app.db.tables import nodes, pools
from app.services.moves.ask_to_save import ask_to_save
from app.services.reading.explain_job import explain_job
from tests.control.test_evictions import SPOT, Machine, gpus
from tests.control.world import World


async def settle(world: World, grace_ms: int | None, **columns: Any) -> None:
    async with world.database.transaction() as connection:
        await connection.execute(update(pools).values(grace_ms=grace_ms, **columns))


async def told(machine: Machine, job_id: str) -> int | None:
    """What the order for its agent says; None: what all runs have."""
    async with machine.world.database.transaction() as connection:
        (own,) = [one.own_grace_ms for one in await orders(connection, machine.node_id) if one.job_id == job_id]
        return own


async def passes(machine: Machine, seconds: int) -> None:
    """Time, in which its agent calls and the loop looks after it."""
    world = machine.world
    for step_s in [*[5] * (seconds // 5), seconds % 5]:
        world.clock.advance(s=step_s)
        await world.beat(machine.node_id)
        await world.check_heartbeats()


@pytest.fixture
async def machine(world: World) -> Machine:
    """On a host of pool `lab`, which gives five minutes."""
    made = Machine(world)
    await made.begin()
    pool = {"name": "lab", "launcher": JOINED, "price_micros": 0, "created_ms": 0, "grace_ms": 300_000}
    async with world.database.transaction() as connection:
        await connection.execute(insert(pools).values(**pool))
        await connection.execute(update(nodes).values(tier=Tier.OWN, provider=JOINED, region="lab"))
    return made


async def test_who_leaves_for_another_job_has_the_pools_grace(machine: Machine) -> None:
    """Its agent is told, what it frees is kept for as long, and it is explained; until then it has the usual one."""
    world = machine.world
    spot = await machine.trains(0, 1, 2, 3)
    assert await told(machine, spot) is None
    job_id = await world.submit(resources=gpus(4))
    await machine.decide()
    assert await machine.states(spot) == ["checkpointing"]
    assert await told(machine, spot) == 300_000
    assert (await world.job(job_id)).set_aside_until_ms == world.clock.now_ms() + 300_000 + START_MS
    world.clock.advance(s=100)
    async with world.database.transaction() as connection:
        job = await find_job(connection, world.project_id, spot)
        assert job is not None
        explained = await explain_job(connection, world.settings, job, now_ms=world.clock.now_ms())
    assert any("if it has not left in about 200 s, its process is killed" in one.text for one in explained.next)


@pytest.mark.parametrize(("grace_ms", "seconds"), [(300_000, 300), (10_000, 10), (None, 60)])
async def test_the_loop_waits_for_it_as_long_and_no_longer(
    machine: Machine, grace_ms: int | None, seconds: int
) -> None:
    """Of an agent that says nothing of its end, a shorter grace than the usual one too."""
    world = machine.world
    await settle(world, grace_ms)
    spot = await machine.trains(0, 1, 2, 3)
    await world.check_heartbeats()  # somebody listens since before it is asked
    job_id = await world.submit(resources=gpus(4))
    await machine.decide()
    await passes(machine, seconds + round(world.settings.transfer_patience_s) - 5)
    assert await machine.states(spot) == ["checkpointing"]
    await passes(machine, 10)
    await machine.decide()
    assert await machine.states(spot, job_id) == ["waiting", "starting"]


async def test_whoever_leaves_for_another_reason_or_elsewhere_has_the_usual_one(machine: Machine) -> None:
    """A pause is no eviction; nor is the pool's word that of a rented machine in a region of its name."""
    world = machine.world
    paused, evicted = await machine.trains(0, 1), await machine.trains(2, 3)
    async with world.database.transaction() as connection:
        await ask_to_save(connection, paused, "its owner pauses it", now_ms=world.clock.now_ms())
    await world.submit(resources=gpus(2))
    await machine.decide()
    assert await machine.states(evicted) == ["checkpointing"]
    assert (await told(machine, paused), await told(machine, evicted)) == (None, 300_000)
    async with world.database.transaction() as connection:
        await connection.execute(update(nodes).values(tier=Tier.MARKETPLACE))
    assert await told(machine, evicted) is None


@pytest.mark.parametrize("grace_ms", [0, -1, 9_999, 600_001, 2**31 - 1])
async def test_what_somebody_wrote_by_hand_is_the_usual_one(machine: Machine, grace_ms: int) -> None:
    """Neither a kill at once, nor GPUs that are waited for until tomorrow."""
    world = machine.world
    await settle(world, grace_ms)
    spot = await machine.trains(0, 1, 2, 3)
    job_id = await world.submit(resources=gpus(4), **{**SPOT, "priority_class": "guaranteed"})
    await machine.decide()
    assert await told(machine, spot) is None
    usual_ms = round(world.settings.stop_grace_s * 1000)
    assert (await world.job(job_id)).set_aside_until_ms == world.clock.now_ms() + usual_ms + START_MS
