"""A project is sure of whole hosts of a pool: within the grace and a start, whoever is on them."""

from __future__ import annotations

from typing import Any

import pytest

from allpass.wire.pools import PoolChange
from app.db import tables as t
from app.db.jobs.reads import find_job
from app.db.pools.pools import find_pool
from app.errors import Conflict, InvalidInput, NotFound
from app.services.pools.define_pool import change_pool
from app.services.reading.explain_job import explain_job
from app.services.reservations.reserve import end_reservation
from app.services.reservations.show import list_reservations
from tests.control.lending_pool import SPOT, LendingPool
from tests.control.test_reservations import reserved
from tests.control.world import World


async def promise(pool: LendingPool, of_hosts: dict[str, list[tuple[int, int]]], **more: Any) -> None:
    """By project: so many hosts with so many GPUs each."""
    asked = {
        project: [{"hosts": hosts, "gpus": gpus, "gpu_type": "a100"} for hosts, gpus in every]
        for project, every in of_hosts.items()
    }
    request = PoolChange.model_validate({"host_quotas": asked} | more)
    world = pool.world
    async with world.database.transaction() as connection:
        await change_pool(connection, world.ids, "lab", request, now_ms=world.clock.now_ms())


async def bound(world: World) -> dict[str, int]:
    """By host: how many of its GPUs are kept."""
    found: dict[str, int] = {}
    for row in await world.rows(t.reserved_gpus):
        if row.until_ms is None:
            found[row.host_id] = found.get(row.host_id, 0) + 1
    return found


async def explained(world: World, job_id: str) -> str:
    async with world.database.transaction() as connection:
        job = await find_job(connection, (await world.job(job_id)).project_id, job_id)
        assert job is not None
        found = await explain_job(connection, world.settings, job, now_ms=world.clock.now_ms())
    return "\n".join(one.text for one in found.because)


@pytest.fixture
async def pool(world: World) -> LendingPool:
    """Two hosts of two GPUs."""
    made = LendingPool(world, gpus=2, hosts=2)
    await made.open()
    return made


async def test_its_jobs_have_a_whole_host_however_many_spot_jobs_are_scattered_there(pool: LendingPool) -> None:
    """Even one that has just begun leaves at once, and nobody guaranteed of another project ever begins there."""
    world = pool.world
    await promise(pool, {world.project_id: [(1, 2)]})
    other = await pool.other_project()
    spot = [await pool.runs(1, other, **SPOT) for _ in range(4)]
    assert list((await bound(world)).values()) == [2]
    stranger = await pool.submit(2, other)
    mine = await pool.submit(2)
    await pool.turn(1)
    states = await pool.state(*spot)
    assert states.count("checkpointing") == 2, "those on its host, in their first minute"
    assert "is sure of 1 hosts of lab with 2 x a100 each, 2 GPUs: " in await explained(world, mine)
    for job_id, state in zip(spot, states, strict=True):
        if state == "checkpointing":
            await pool.leaves(job_id)
    await pool.turn()
    assert await pool.state(mine, stranger) == ["starting", "queued"]
    (kept_host,) = await bound(world)
    (row,) = [one for one in await world.rows(t.host_machines) if one.node_id == await world.node_of(mine)]
    assert (row.host_id, sorted(row.gpu_indices)) == (kept_host, [0, 1])
    await pool.check()


async def test_what_guaranteed_jobs_of_others_began_there_before_is_given_back_when_it_is_wanted(
    pool: LendingPool,
) -> None:
    """Once hosts are a quota, all that others have is borrowed; of a window that is reserved nobody would leave."""
    world = pool.world
    other = await pool.other_project()
    theirs = [await pool.runs(2, other), await pool.runs(2, other)]
    await promise(pool, {world.project_id: [(1, 2)]})
    await pool.turn(1)
    row = await quota_row(world)
    assert (row.short_gpus, row.blocked_gpus) == (0, 2)
    told = [one.message for one in await world.rows(t.job_events) if one.kind == "reserved_for_others"]
    assert [one.startswith("GPUs that it runs on are of another project's quota of hosts now") for one in told] == [
        True
    ]
    mine = await pool.submit(2)
    await pool.turn(1)
    states = await pool.state(*theirs)
    assert sorted(states) == ["checkpointing", "running"]
    (left,) = [job_id for job_id, state in zip(theirs, states, strict=True) if state == "checkpointing"]
    asked = [one.message for one in await world.rows(t.job_events) if (one.job_id, one.kind) == (left, "checkpointing")]
    assert (
        "a guaranteed job of another project needs its GPUs, which are of that project's quota of hosts in pool lab"
        in asked[0]
    )
    await pool.leaves(left)
    await pool.turn()
    assert await pool.state(mine, left) == ["starting", "waiting"]
    await pool.check()


async def test_of_a_window_that_is_reserved_nobody_guaranteed_leaves_even_in_a_pool_with_quotas_of_hosts(
    pool: LendingPool,
) -> None:
    other, third = await pool.other_project(), await pool.other_project()
    theirs = [await pool.runs(2, other), await pool.runs(2, other)]
    await promise(pool, {third[0]: [(1, 2)]})
    await pool.turn(1)
    await reserved(pool, 2)
    mine = await pool.submit(2)
    await pool.turn(2)
    assert (await pool.state(*theirs), await pool.state(mine)) == (["running", "running"], ["queued"])


async def test_what_another_project_is_sure_of_it_has_elsewhere(pool: LendingPool) -> None:
    """Two GPUs of the pool are theirs by a quota: not those of a host that has become another's, though they were there
    first. On the other host they are."""
    world = pool.world
    other = await pool.other_project()
    first, second = await pool.runs(2, other), await pool.runs(2, other)
    await promise(pool, {world.project_id: [(1, 2)]}, quotas={other[0]: 2})
    mine = await pool.submit(2)
    await pool.turn(1)
    assert (await quota_row(world)).blocked_gpus == 2
    states = await pool.state(first, second)
    assert sorted(states) == ["checkpointing", "running"]
    left = first if states[0] == "checkpointing" else second
    await pool.leaves(left)
    await pool.turn()
    assert (await quota_row(world)).blocked_gpus == 0
    assert await pool.state(mine, left) == ["starting", "waiting"], "it is beyond the quota, which the other one uses"
    await pool.check()


async def test_a_job_within_its_quota_that_leaves_anothers_host_has_its_place_on_the_next(pool: LendingPool) -> None:
    """One of theirs is on each of the hosts, and both are within their quota: one of them goes to the other's host."""
    world = pool.world
    other = await pool.other_project()
    one, filler, two = await pool.runs(1, other), await pool.runs(1, other), await pool.runs(1, other)
    await pool.leaves(filler, saved=False)
    await promise(pool, {world.project_id: [(1, 2)]}, quotas={other[0]: 2})
    mine = await pool.submit(2)
    await pool.turn(1)
    states = await pool.state(one, two)
    assert sorted(states) == ["checkpointing", "running"]
    left = one if states[0] == "checkpointing" else two
    asked = [row.message for row in await world.rows(t.job_events) if (row.job_id, row.kind) == (left, "checkpointing")]
    assert "needs its GPUs, which are of that project's quota of hosts in pool lab" in asked[0]
    await pool.leaves(left)
    await pool.turn()
    assert await pool.state(mine, one, two) == [
        "starting",
        *("starting" if it == left else "running" for it in (one, two)),
    ]
    kept = set(await bound(world))
    at = {row.node_id: row.host_id for row in await world.rows(t.host_machines) if row.ended_ms is None}
    assert [at[await world.node_of(job_id)] in kept for job_id in (mine, one, two)] == [True, False, False]
    await pool.turn(3)
    assert "checkpointing" not in await pool.state(mine, one, two), "nobody leaves in turn"
    await pool.check()


async def quota_row(world: World) -> Any:
    (row,) = [one for one in await world.rows(t.reservations) if one.ended_ms is None]
    return row


async def test_a_quota_that_is_raised_or_lowered_keeps_the_hosts_it_has(pool: LendingPool) -> None:
    world = pool.world
    await promise(pool, {world.project_id: [(1, 2)]})
    await pool.turn(1)
    first = await bound(world)
    await promise(pool, {world.project_id: [(2, 2)]})
    await pool.turn(1)
    assert await bound(world) == dict.fromkeys(pool._hosts, 2)
    await promise(pool, {world.project_id: [(1, 2)]})
    await pool.turn(1)
    assert len(await bound(world)) == 1
    assert set(first) <= set(pool._hosts)
    assert len(await world.rows(t.reservations)) == 1, "it is one row all the while"
    await promise(pool, {})
    await pool.turn(1)
    assert await bound(world) == {}


async def test_more_hosts_than_there_are_and_hosts_that_a_window_has_a_part_of_are_refused(pool: LendingPool) -> None:
    world = pool.world
    other = await pool.other_project()
    with pytest.raises(
        Conflict, match=r"3 x 2 x a100 cannot be promised: open hosts of lab have 4 such GPUs"
    ) as refused:
        await promise(pool, {world.project_id: [(3, 2)]})
    assert (refused.value.error_code, refused.value.param) == ("not_reservable", "host_quotas")
    with pytest.raises(Conflict, match="no open host of lab has H100 now"):
        await promise(pool, {}, host_quotas={world.project_id: [{"hosts": 1, "gpus": 1, "gpu_type": "H100"}]})
    with pytest.raises(Conflict, match="0 open hosts have so many of them"):
        await promise(pool, {world.project_id: [(1, 4)]})
    await promise(pool, {world.project_id: [(1, 2)], other[0]: [(1, 1)]})
    await pool.turn(1)
    with pytest.raises(Conflict):
        await promise(pool, {world.project_id: [(2, 2)], other[0]: [(1, 1)]})
    assert (await quota_sizes(world)) == [1, 2], "what was refused has changed nothing"


async def quota_sizes(world: World) -> list[int]:
    return sorted(row.gpus for row in await world.rows(t.reservations) if row.ended_ms is None)


async def test_quotas_that_are_raised_leave_what_is_reserved(pool: LendingPool) -> None:
    """At the moment of its window, however far ahead. What is lowered, or stays, is never refused."""
    world = pool.world
    other, _ = await pool.other_project()
    await reserved(pool, 3, begins_h=1)
    with pytest.raises(
        Conflict, match=r"quotas: 2 GPUs of lab cannot be promised: 4 of it may be used at once, and 3"
    ) as no:
        await promise(pool, {}, quotas={other: 2})
    assert (no.value.error_code, no.value.param) == ("not_reservable", "quotas")
    await promise(pool, {}, quotas={other: 1})
    with pytest.raises(Conflict):
        await promise(pool, {world.project_id: [(1, 2)]})
    world.clock.advance(ms=120_000)  # the hosts are silent: nothing of it could be kept now
    await promise(pool, {}, quotas={world.project_id: 1})
    await promise(pool, {}, quotas={})


async def test_without_anything_reserved_quotas_may_come_before_the_hosts(world: World) -> None:
    pool = LendingPool(world, gpus=2)
    await pool.open()
    await promise(pool, {}, quotas={world.project_id: 100})
    async with world.database.transaction() as connection:
        row = await find_pool(connection, "lab")
    assert row is not None
    assert row.pool.quotas == ((world.project_id, 100),)


async def test_what_is_a_quota_of_hosts_is_no_window_that_its_project_could_end(pool: LendingPool) -> None:
    world = pool.world
    await promise(pool, {world.project_id: [(1, 2)]})
    row = await quota_row(world)
    now_ms = world.clock.now_ms()
    async with world.database.transaction() as connection:
        assert await list_reservations(connection, world.project_id, after=None, limit=9, now_ms=now_ms) == []
        with pytest.raises(NotFound):
            await end_reservation(connection, world.project_id, row.id, now_ms=now_ms)


async def test_a_host_that_goes_is_replaced_by_a_whole_one_and_else_it_is_told(world: World) -> None:
    pool = LendingPool(world, gpus=2, hosts=2)
    await pool.open()
    await promise(pool, {world.project_id: [(1, 2)]})
    await pool.turn(1)
    (gone,) = await bound(world)
    token = pool._hosts.pop(gone)  # it is unplugged
    for _ in range(8):
        world.clock.advance(ms=15_000)
        await pool.turn(1)
    (now,) = await bound(world)
    assert now != gone
    last = pool._hosts.pop(now)
    for _ in range(8):
        world.clock.advance(ms=15_000)
        await pool.turn(1)
    assert (await quota_row(world)).short_gpus == 2
    pool._hosts |= {gone: token, now: last}
    await pool.turn(2)
    assert (await quota_row(world)).short_gpus == 0


async def test_only_hosts_that_have_joined_and_projects_of_the_pool(world: World) -> None:
    pool = LendingPool(world, gpus=2)
    other = await pool.other_project()
    await pool.open(projects=(other[0],))
    with pytest.raises(InvalidInput, match="may not use lab: name it among the projects of the pool first"):
        await promise(pool, {world.project_id: [(1, 2)]})
