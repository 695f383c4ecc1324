"""Machines that end by themselves, where jobs save, leave and wait for a place; and nothing is placed where it could
not stay. Where moves are made before the old place is broken, `test_leaving.py` has what happens instead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.model.node import Tier
from app.db import tables as t
from app.db.engine import Database
from tests.conftest import CountingIds, ManualClock
from tests.control.world import World, make_settings

_DAY_S = 86_400
_MARGIN_S = 900


@pytest.fixture
async def world(database: Database, database_url: str, clock: ManualClock, ids: CountingIds) -> World:
    world = World(database, make_settings(database_url, moves="stop_and_go"), clock, ids)
    await world.open()
    return world


@pytest.fixture
def daily(world: World) -> World:
    """Serverless machines that live for a day, on a clock that passes days at once; nothing else is on offer."""
    world.cloud.max_lifetime_ms = {Tier.SERVERLESS: _DAY_S * 1000}
    world.cloud.on_offer = world.cloud.on_offer[:1]
    return world


async def _after(world: World, node_id: str, seconds: float) -> None:
    world.clock.advance(s=seconds)
    await world.beat(node_id)
    await world.sweep()
    await world.leave_in_time()


async def test_a_run_moves_on_by_itself_before_its_machine_ends(daily: World) -> None:
    """It is asked to save a quarter of an hour before, with the reason, and goes on elsewhere: no fault."""
    job_id, node_id = await daily.run_on_serverless()
    await _after(daily, node_id, _DAY_S - _MARGIN_S - 5)
    assert (await daily.job(job_id)).state == "running"
    await _after(daily, node_id, 6)
    assert (await daily.job(job_id)).state == "checkpointing"
    (told,) = [row for row in await daily.rows(t.job_events) if row.kind == "run_stopping"]
    assert told.message == "cloud ends this machine in 14 min: saves at the next step and goes on elsewhere"
    await daily.report(node_id, "exited", exit_code=0, saved_after_stop=True)
    await daily.work()
    await daily.decide()
    await daily.work()
    job = await daily.job(job_id)
    assert (job.state, job.faults, job.moves) == ("starting", 0, 1)
    assert await daily.node_of(job_id) != node_id
    assert (await daily.node(node_id)).state == "terminated"
    await daily.check_invariants()


async def test_a_job_longer_than_any_machine_lives_goes_through_several(daily: World) -> None:
    """Three days on machines of one day each."""
    job_id, node_id = await daily.run_on_serverless()
    for _ in range(3):
        await _after(daily, node_id, _DAY_S - _MARGIN_S + 1)
        await daily.report(node_id, "exited", exit_code=0, saved_after_stop=True)
        await daily.work()
        await daily.decide()
        await daily.work()
        node_id = await daily.node_of(job_id)
        await daily.boot(node_id)
        await daily.report(node_id, "running")
    await daily.report(node_id, "exited", exit_code=0)
    job = await daily.job(job_id)
    assert (job.state, job.faults, job.moves) == ("succeeded", 0, 3)


async def test_a_lease_that_ends_counts_like_a_limit_and_may_be_extended(world: World) -> None:
    """The provider tells each machine's end in its listing, and may tell a later one."""
    job_id, node_id = await world.run_on_serverless()
    (rented,) = world.cloud.of_label(node_id)
    ends_ms = world.clock.now_ms() + 7_200_000
    rented.machine = replace(rented.machine, ends_ms=ends_ms)
    await _after(world, node_id, 3_600)
    assert (await world.node(node_id)).ends_ms == ends_ms
    rented.machine = replace(rented.machine, ends_ms=ends_ms + 3_600_000)
    await _after(world, node_id, 3_000)
    assert (await world.job(job_id)).state == "running"
    await _after(world, node_id, 3_600)
    assert (await world.job(job_id)).state == "checkpointing"


async def test_nothing_new_is_placed_on_a_machine_that_ends_soon(world: World) -> None:
    """Idle and ready, but not for long: decisions see it as leaving, and it is given back."""
    world.cloud.on_offer = world.cloud.on_offer[1:]
    world.cloud.max_lifetime_ms = {Tier.MARKETPLACE: _DAY_S * 1000}
    first = await world.submit()
    await world.decide()
    await world.work()
    node_id = (await world.newest_node()).id
    await world.boot(node_id)
    await world.decide()
    await world.report(node_id, "running")
    world.clock.advance(s=_DAY_S - 60)
    await world.report(node_id, "exited", exit_code=0)
    assert (await world.job(first)).state == "succeeded"
    second = await world.submit()
    decision = await world.decide()
    assert {node.node_id: node.state for node in decision.snapshot.nodes}[node_id] == "draining"
    assert (await world.job(second)).state == "queued"
    await world.leave_in_time()
    assert (await world.node(node_id)).state == "terminating"


async def test_of_a_short_life_a_quarter_is_kept_for_leaving(world: World) -> None:
    """A machine of ten minutes is not left before it has done anything."""
    world.cloud.max_lifetime_ms = {Tier.SERVERLESS: 600_000}
    world.cloud.on_offer = world.cloud.on_offer[:1]
    job_id, node_id = await world.run_on_serverless()
    await _after(world, node_id, 449)
    assert (await world.job(job_id)).state == "running"
    await _after(world, node_id, 2)
    assert (await world.job(job_id)).state == "checkpointing"


async def test_code_that_starts_late_is_asked_as_soon_as_it_runs(daily: World) -> None:
    """A run that still prepares cannot save; it leaves once it can."""
    job_id = await daily.submit()
    await daily.decide()
    await daily.work()
    node_id = await daily.node_of(job_id)
    await daily.boot(node_id)
    await daily.report(node_id, "preparing")
    await _after(daily, node_id, _DAY_S - 600)
    assert (await daily.job(job_id)).state == "starting"
    await daily.report(node_id, "running")
    await daily.leave_in_time()
    assert (await daily.job(job_id)).state == "checkpointing"
