"""Hosts are vacated for a job on several machines that waits: under one switch, and for nobody else until all are."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import update

from app.core.defragmentation import Goal
from app.core.model.job import Resources
from app.core.model.pool import JOINED
from app.db import tables as t
from app.services.defragmentation.ask_defragmentation import plan_defragmentation
from app.services.defragmentation.show import found_of
from tests.control.defragging import Fragmented
from tests.control.test_gang_spread import NetworkedHosts
from tests.control.world import World
from tests.seeds import resources_json


@pytest.fixture
async def fleet(world: World, tmp_path: Path) -> Fragmented:
    """Of the hosts under leaf-1 two have a job of one GPU, and one is free; others have pinned ones, and room."""
    made = Fragmented(world, tmp_path, Goal.POOLS)
    await made.begin()
    hosts = NetworkedHosts(world.clock, name=JOINED)
    hosts.on_offer = []
    world.other_clouds = [hosts]
    world.settings.defrag_moves_at_once = 1
    await world.restart()
    for name, switch in (("a", 1), ("b", 2), ("c", 3), ("d", 1), ("e", 1), ("f", 2)):
        await made.machine(name, labels={"switch": f"leaf-{switch}"})
    await made.trains("x", "a", 1)
    await made.trains("y", "d", 1)
    for name, on in (("p", "b"), ("q", "c"), ("r", "f")):
        await made.trains(name, on, 2, affinity={"locked": True})
    return made


async def waits(fleet: Fragmented, nodes: int = 3) -> str:
    return await fleet.world.submit(resources=resources_json(Resources(4, 4, nodes=nodes)), saves_ms=1)


async def machines_of(fleet: Fragmented, job_id: str) -> set[str]:
    nodes = [node for node in await fleet.world.rows(t.nodes) if node.rented_for_job_id == job_id]
    return {str(node.host).removeprefix("host_").partition("/")[0] for node in nodes}


async def test_it_begins_under_one_switch_and_nobody_comes_before_all_is_free(fleet: Fragmented) -> None:
    """Small jobs that come meanwhile go where there is room, or wait: not onto the host that is free, nor onto the
    first that is vacated while the second is not."""
    job_id = await waits(fleet)
    await fleet.asks()
    for _ in range(3):
        await fleet.round()
    (move,) = await fleet.moving()
    small = [await fleet.world.submit(resources=resources_json(Resources(3, 3)), saves_ms=1) for _ in range(3)]
    await fleet.world.decide()
    await fleet.works()
    await fleet.completes(move)
    for _ in range(3):
        await fleet.round()
        await fleet.world.decide()
        await fleet.works()
    assert sorted(await fleet.states()) == ["freed", "moving"]
    assert {(await fleet.world.job(one)).state for one in small} == {"queued"}
    shown = await fleet.until_over()
    assert [str(one.release.state) for one in shown.releases] == ["freed", "freed"], shown
    assert {one.release.for_job_id for one in shown.releases} == {job_id}
    await fleet.heard()
    await fleet.world.decide()
    assert await machines_of(fleet, job_id) == {"a", "d", "e"}
    await fleet.world.check_invariants()


async def test_a_plan_says_for_whom_and_what_counts_as_it_is(fleet: Fragmented) -> None:
    job_id = await waits(fleet)
    world = fleet.world
    plan = await plan_defragmentation(world.database, world.settings, Goal.POOLS, None, 20, now_ms=world.clock.now_ms())
    assert [one.for_job_id for one in plan.releases] == [job_id, job_id]
    assert all(f"{job_id} can have its 3 machines under leaf-1" in one.reason for one in plan.releases)
    assert found_of(plan)["held"] == {job_id: ["host_e/A100"]}


async def test_what_was_planned_for_a_job_that_ends_is_dropped_and_opens(fleet: Fragmented) -> None:
    """A move that is under way ends as moves do."""
    job_id = await waits(fleet)
    await fleet.asks()
    for _ in range(3):
        await fleet.round()
    assert len(await fleet.moving()) == 1
    async with fleet.world.database.transaction() as connection:
        cancelled = update(t.jobs).where(t.jobs.c.id == job_id).values(state="cancelled", ended_ms=1)
        await connection.execute(cancelled)
    shown = await fleet.until_over()
    assert {str(one.release.state) for one in shown.releases} == {"dropped"}
    assert {one.end_message for one in shown.releases} == {f"{job_id} does not wait any more"}
    small = await fleet.world.submit(resources=resources_json(Resources(4, 4)), saves_ms=1)
    await fleet.heard()
    await fleet.world.decide()
    assert (await fleet.world.job(small)).state != "cancelled" and await machines_of(fleet, small)


async def test_by_schedule_while_it_waits(fleet: Fragmented) -> None:
    """Also of one that has waited so long that hosts are kept for it: whoever is on these may leave them."""
    job_id = await waits(fleet)
    await fleet.world.decide()
    fleet.world.clock.advance(s=400)
    await fleet.heard()
    await fleet.world.decide()
    assert len(fleet.world.control.loop.kept_hosts) == 3
    fleet.world.settings.defrag_every_s = 60
    for _ in range(3):
        await fleet.round(after_ms=61_000)
    rows = await fleet.world.rows(t.node_releases)
    assert {row.for_job_id for row in rows} == {job_id} and len(rows) == 2
