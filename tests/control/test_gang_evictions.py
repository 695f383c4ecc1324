"""A guaranteed job on several machines has spot jobs leave as many hosts as it lacks, through the loop itself: all of
it or none, kept until all have left, and begun once."""

from __future__ import annotations

import pytest

from app.core.model.job import Resources
from app.db.jobs.set_asides import START_MS, set_asides
from app.db.nodes.agents import set_heartbeat
from app.db.tables import nodes as nodes_table
from app.services.jobs.cancel_job import cancel_job
from tests.control.lending_pool import HOUR_MS, SPOT, LendingPool, turns_though_it_dies
from tests.control.test_gangs import JOINS
from tests.control.world import World
from tests.seeds import resources_json

MINUTE_MS = 60_000


class Hosts(LendingPool):
    """Whose machines can take part in a job on several."""

    async def beat(self) -> None:
        await super().beat()
        for row in await self.world.rows(nodes_table):
            if row.state == "ready":
                async with self.world.database.transaction() as connection:
                    await set_heartbeat(connection, row.id, JOINS, now_ms=self.world.clock.now_ms())

    async def gang(self, nodes: int = 2, **columns: object) -> str:
        return await self.submit(resources=resources_json(Resources(1, 1, nodes=nodes)), **columns)

    async def nodes_for(self, job_id: str) -> int:
        gone = ("terminated", "failed", "terminating")
        rows = await self.world.rows(nodes_table)
        return sum(row.rented_for_job_id == job_id and row.state not in gone for row in rows)


async def hosts_of(world: World, number: int = 3, **pool: object) -> tuple[Hosts, list[str]]:
    """So many hosts of one GPU, each with a spot job of another project that has trained for an hour."""
    made = Hosts(world, gpus=1, hosts=number)
    await made.open(**pool)
    other = await made.other_project()
    spot = [await made.runs(project=other, **SPOT) for _ in range(number)]
    world.clock.advance(ms=HOUR_MS)
    for one in spot:
        await made.trains(one, 500)
    await made.turn(1)  # the hosts are heard of again
    return made, spot


@pytest.fixture
async def hosts(world: World) -> tuple[Hosts, list[str]]:
    return await hosts_of(world)


async def left_for(world: World, job_id: str, spot: list[str]) -> list[str]:
    asked = [one for one in spot if (await world.job(one)).state == "checkpointing"]
    assert "evicts" in await world.events(job_id)
    return asked


async def test_as_many_leave_as_it_has_machines_and_it_begins_when_the_last_has(hosts: tuple[Hosts, list[str]]) -> None:
    pool, spot = hosts
    world = pool.world
    job_id = await pool.gang()
    await pool.turn(1)
    asked = await left_for(world, job_id, spot)
    assert len(asked) == 2
    await pool.turn(3)
    assert await left_for(world, job_id, spot) == asked, "however often it looks, nobody else is asked"
    sooner = await pool.submit(deadline_ms=1, **SPOT)
    await pool.leaves(asked[0])
    await pool.turn(4)
    assert await pool.state(job_id, sooner, *asked) == ["queued", "queued", "waiting", "checkpointing"]
    assert await pool.nodes_for(job_id) == 0, "nothing is rented before all of it can be"
    assert (await world.job(job_id)).wait_reason == "begins as soon as the GPUs that are kept for it are free"
    await pool.leaves(asked[1])
    await pool.turn(6)
    assert await pool.state(job_id, sooner, *asked) == ["starting", "queued", "waiting", "waiting"]
    assert await pool.nodes_for(job_id) == 2
    assert [(await world.job(one)).evictions for one in asked] == [1, 1]
    await pool.check()


async def test_a_free_host_is_kept_while_another_one_is_left(world: World) -> None:
    pool = Hosts(world, gpus=1, hosts=2)
    await pool.open()
    spot = await pool.runs(**SPOT)
    world.clock.advance(ms=HOUR_MS)
    await pool.trains(spot, 500)
    await pool.turn(1)
    job_id = await pool.gang()
    await pool.turn(1)
    assert await pool.state(spot) == ["checkpointing"]
    other = await pool.submit(deadline_ms=1)
    await pool.turn(3)
    assert await pool.state(other, job_id) == ["queued", "queued"]
    await pool.leaves(spot)
    await pool.turn(6)
    assert await pool.state(job_id, other) == ["starting", "queued"]
    await pool.check()


async def test_nobody_is_asked_where_it_could_not_have_all(hosts: tuple[Hosts, list[str]]) -> None:
    pool, spot = hosts
    job_id = await pool.gang(4)
    await pool.turn(3)
    assert await pool.state(job_id, *spot) == ["queued", "running", "running", "running"]


async def test_a_spot_job_on_several_machines_has_nobody_leave(hosts: tuple[Hosts, list[str]]) -> None:
    pool, spot = hosts
    await pool.gang(2, **SPOT)
    await pool.turn(3)
    assert await pool.state(*spot) == ["running", "running", "running"]


async def test_within_its_quota_others_leave_and_beyond_it_nobody_does(world: World) -> None:
    pool, spot = await hosts_of(world, 3, quotas=((world.project_id, 2),))
    await pool.gang(3)
    await pool.turn(2)
    assert await pool.state(*spot) == ["running"] * 3
    await pool.gang(2)
    await pool.turn(2)
    assert sorted(await pool.state(*spot)) == ["checkpointing", "checkpointing", "running"]


async def test_one_that_is_cancelled_meanwhile_leaves_all_of_it_to_others(hosts: tuple[Hosts, list[str]]) -> None:
    pool, spot = hosts
    world = pool.world
    job_id = await pool.gang()
    await pool.turn(1)
    asked = await left_for(world, job_id, spot)
    async with world.database.transaction() as connection:
        await cancel_job(connection, world.ids, world.project_id, job_id, now_ms=world.clock.now_ms())
    for one in asked:
        await pool.leaves(one)
    await pool.turn(6)
    assert await pool.state(*asked) == ["starting", "starting"]
    await pool.check()


async def test_what_nobody_takes_in_its_time_is_anybodys_again(hosts: tuple[Hosts, list[str]]) -> None:
    """One of those that were asked never leaves; the host of the other one is not kept for ever."""
    pool, spot = hosts
    world = pool.world
    job_id = await pool.gang()
    await pool.turn(1)
    first, _stuck = await left_for(world, job_id, spot)
    await pool.leaves(first)
    world.clock.advance(ms=HOUR_MS)
    async with world.database.transaction() as connection:
        assert await set_asides(connection, now_ms=world.clock.now_ms() + START_MS) == []


async def test_the_process_may_die_after_any_statement(world: World, database_url: str, sweep: bool) -> None:
    """All are asked or none; both machines are rented or none; it begins once."""
    pool, spot = await hosts_of(world, 2)
    job_id = await pool.gang()
    stride = 1 if sweep else 11
    died = await turns_though_it_dies(world, pool, database_url, stride)
    asked = await left_for(world, job_id, spot)
    assert asked == spot and (await world.events(job_id)).count("evicts") == 1
    for one in asked:
        await pool.leaves(one)
    for _ in range(4):
        died += await turns_though_it_dies(world, pool, database_url, stride)
        assert await pool.nodes_for(job_id) in {0, 2}
    assert died > 3
    assert await pool.state(job_id) == ["starting"]
    await pool.check()
