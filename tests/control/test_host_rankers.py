"""The ranker that an installation has chosen says on which host of a pool a job begins, through the loop itself."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from app.control import gangs as control_gangs
from app.control import rank_hosts
from app.core.eviction.placing import HALF_LIFE_MS
from app.core.host_ranking import HostUse
from app.db.decisions.recorded_ticks import read_recorded_tick
from app.db.jobs.reads import find_job
from app.db.runs.host_use import host_use
from app.db.tables import nodes, ticks
from app.services.decisions.policy_settings import policy_config
from app.services.decisions.replay_tick import replay_tick
from app.services.reading.explain_job import explain_job
from tests.control.lending_pool import SPOT, LendingPool
from tests.control.test_gang_evictions import Hosts
from tests.control.world import World


class TwoHosts(LendingPool):
    """Of two GPUs each, one of which is free: on the first host a guaranteed job, on the second a spot job."""

    guaranteed = spot = ""

    async def fill(self) -> None:
        await self.open()
        first = await self.runs(2)
        self.spot = await self.runs(1, **SPOT)
        beside = await self.runs(1)
        await self.leaves(first, saved=False)
        await self.turn()
        self.guaranteed = await self.runs(1)
        await self.leaves(beside, saved=False)
        await self.turn()


@pytest.fixture
async def pool(world: World) -> TwoHosts:
    made = TwoHosts(world, gpus=2, hosts=2)
    await made.fill()
    return made


async def host_of(world: World, job_id: str) -> str:
    node_id = await world.node_of(job_id)
    async with world.database.transaction() as connection:
        host = (await connection.execute(select(nodes.c.host).where(nodes.c.id == node_id))).scalar_one()
    return str(host).partition("/")[0]


async def why(world: World, job_id: str) -> list[str]:
    async with world.database.transaction() as connection:
        job = await find_job(connection, world.project_id, job_id)
        assert job is not None
        found = await explain_job(connection, world.settings, job, now_ms=world.clock.now_ms())
    return [one.text for one in found.because]


async def used(world: World) -> HostUse:
    async with world.database.transaction() as connection:
        return await host_use(connection, now_ms=world.clock.now_ms())


async def test_by_the_papers_criteria_spot_jobs_come_together_and_it_is_explained(pool: TwoHosts) -> None:
    world = pool.world
    beside_guaranteed, beside_spot = await host_of(world, pool.guaranteed), await host_of(world, pool.spot)
    assert beside_guaranteed < beside_spot, "by name the first would come first for both"
    world.settings.host_ranker = "spotgpu"
    job_id = await pool.runs(1, **SPOT)
    assert await host_of(world, job_id) == beside_spot
    (told,) = [one for one in await why(world, job_id) if "by the ranker" in one]
    assert (
        f"by the ranker spotgpu on {beside_spot}, of 2 hosts of lab: 0 GPUs stay idle there, beside 0 guaranteed jobs"
        ", after 0.00 evictions" in told
    )
    assert await host_of(world, await pool.runs(1)) == beside_guaranteed
    await pool.check()


async def test_as_it_is_by_default_both_classes_are_one(pool: TwoHosts) -> None:
    world = pool.world
    job_id = await pool.runs(1, **SPOT)
    assert await host_of(world, job_id) == await host_of(world, pool.guaranteed)
    assert not [one for one in await why(world, job_id) if "by the ranker" in one]


async def test_evictions_are_counted_where_they_happened_and_fade(pool: TwoHosts) -> None:
    """The spot job leaves for one of two GPUs; next time spot jobs rather go where nobody was evicted."""
    world = pool.world
    left = await host_of(world, pool.spot)
    assert (await used(world)).evictions == {}
    world.clock.advance(ms=120_000)
    both = await pool.submit(2)
    await pool.turn()
    await pool.leaves(pool.spot)
    await world.set_job(pool.spot, state="cancelled")
    await pool.turn(8)
    await pool.trains(both, 5)
    assert await host_of(world, both) == left
    at_ms = world.clock.now_ms()
    use = await used(world)
    assert use.guaranteed == {await host_of(world, pool.guaranteed): 1, left: 1}
    assert use.evictions[left].at(at_ms) == pytest.approx(1.0, abs=0.01)
    assert use.evictions[left].at(at_ms + HALF_LIFE_MS) == pytest.approx(0.5, abs=0.01)
    for job_id in (both, pool.guaranteed):
        await pool.leaves(job_id, saved=False)
    await pool.turn(8)
    world.settings.host_ranker = "spotgpu"
    assert await host_of(world, await pool.runs(1, **SPOT)) != left
    world.clock.advance(ms=11 * HALF_LIFE_MS)
    assert (await used(world)).evictions == {}


async def test_a_ranker_that_fails_stops_nobody(pool: TwoHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    world = pool.world
    world.settings.host_ranker = "gradient"

    def fails(*_: object) -> None:
        raise RuntimeError("no figure for it")

    monkeypatch.setattr(rank_hosts, "rank_hosts", fails)
    job_id = await pool.runs(1)
    assert await pool.state(job_id) == ["running"]
    assert not [one for one in await why(world, job_id) if "by the ranker" in one]
    await pool.check()


@pytest.mark.parametrize("ranker", ["best-fit", "gradient"])
async def test_what_was_decided_is_kept_as_the_policy_decided_it(pool: TwoHosts, ranker: str) -> None:
    """So that the decision can be taken again; what was enacted says where it was put."""
    world = pool.world
    world.settings.host_ranker = ranker  # type: ignore[assignment]
    job_id = await pool.runs(1)
    assert [one for one in await why(world, job_id) if f"by the ranker {ranker}" in one]
    enacted = [row for row in await world.rows(ticks) if "by the ranker" in str(row.plan)]
    assert enacted
    async with world.database.transaction() as connection:
        tick = await read_recorded_tick(connection, enacted[-1].id)
    assert tick is not None
    assert replay_tick(tick, policy_config(world.settings), policy=None, rules={}).replay.is_same
    await pool.check()


async def three_hosts(world: World) -> tuple[Hosts, list[str]]:
    """Of two GPUs each, of which one is free: beside a guaranteed job on the first, beside spot jobs on the others."""
    pool = Hosts(world, gpus=2, hosts=3)
    await pool.open()
    stay, leave = [], []
    for kind in ({}, SPOT, SPOT):
        stay.append(await pool.runs(1, **kind))
        leave.append(await pool.runs(1))
    for job_id in leave:
        await pool.leaves(job_id, saved=False)
    await pool.turn()
    return pool, [await host_of(world, job_id) for job_id in stay]


async def hosts_for(world: World, job_id: str) -> set[str]:
    rows = [one for one in await world.rows(nodes) if one.rented_for_job_id == job_id]
    return {str(one.host).partition("/")[0] for one in rows}


async def test_of_a_job_on_several_machines_the_ranker_says_it_too(world: World) -> None:
    pool, hosts = await three_hosts(world)
    world.settings.host_ranker = "spotgpu"
    job_id = await pool.gang(**SPOT)
    await pool.turn(2)
    assert await hosts_for(world, job_id) == set(hosts[1:]), "where no guaranteed job is"
    await pool.check()


async def test_a_ranker_that_fails_keeps_no_job_on_several_machines_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, hosts = await three_hosts(world)
    world.settings.host_ranker = "spotgpu"
    monkeypatch.setattr(control_gangs, "host_order", fails)
    job_id = await pool.gang(**SPOT)
    await pool.turn(2)
    assert await hosts_for(world, job_id) == set(sorted(hosts)[:2]), "as by default"


async def fails(*_: object) -> None:
    raise RuntimeError("no such figure")
