"""Two installations rent from one account, and neither touches what is the other's; so do two releases of one."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from itertools import count

import pytest
from sqlalchemy import update

from app.core.model.ids import is_id, is_marked, make_id, marked
from app.db import tables as t
from app.db.access.installation import installation_id
from app.db.engine import Database, make_engine
from tests.conftest import CountingIds, ManualClock
from tests.control.fake_provider import Fault
from tests.control.world import World, make_settings


@pytest.fixture
def other_url(new_database: Callable[[], str]) -> str:
    return new_database()


@pytest.fixture
async def other(world: World, other_url: str) -> AsyncIterator[World]:
    """Another installation, with a database of its own, that rents from the same account."""
    url = other_url
    database = Database(make_engine(url, pool_size=8, timeout_s=10.0))
    ids = CountingIds(world.clock)
    ids._count = count(500_000)  # chance never gives two installations the same id
    there = World(database, make_settings(url), world.clock, ids)
    there.cloud = world.cloud
    there.control = there.new_control()
    await name_installation(there, "inst_01OTHER0000000009999")
    await there.open()
    yield there
    await database.close()


async def name_installation(world: World, name: str) -> None:
    """Tests' databases are copies of one, and so one installation."""
    async with world.database.transaction() as connection:
        await connection.execute(update(t.installations).values(id=name))


async def own_id(world: World) -> str:
    async with world.database.transaction() as connection:
        return await installation_id(connection)


async def live_on(world: World, *, s: int) -> None:
    """Its chores at work for so long, while its own agents speak."""
    for _ in range(s // 20):
        world.clock.advance(s=20)
        for node in await world.rows(t.nodes):
            if node.state == "ready":
                await world.beat(node.id)
        await world.sweep()
        await world.work()


async def test_every_machine_carries_its_installation(world: World) -> None:
    """The label of the create call is a node's id as before, and tells whose it is."""
    _job_id, node_id = await world.run_on_serverless()
    (machine,) = world.cloud.alive()
    assert machine.label == node_id
    assert is_marked(machine.label, await own_id(world))
    assert not is_marked(machine.label, "inst_01OTHER0000000009999")


async def test_two_installations_live_side_by_side(world: World, other: World) -> None:
    """Each runs its job to the end beside the other's, which it lists; each pays its own machines and no other."""
    (job_id, node_id), (other_job, other_node) = await world.run_on_serverless(), await other.run_on_serverless()
    for _ in range(3):
        await live_on(world, s=60)
        await live_on(other, s=60)
    assert sorted(machine.label or "" for machine in world.cloud.alive()) == sorted([node_id, other_node])
    await world.report(node_id, "exited", exit_code=0)
    await live_on(world, s=60)
    await live_on(other, s=60)
    assert [machine.label for machine in world.cloud.alive()] == [other_node]
    assert (await world.job(job_id)).state == "succeeded"
    assert (await other.job(other_job)).state == "running"
    assert [node.id for node in await world.rows(t.nodes)] == [node_id]
    assert await world.ledger_sum() == world.cloud.bill(node_id).micros > 0


async def test_an_installation_whose_rows_are_lost_finds_its_machines_and_not_the_others(
    world: World, other: World
) -> None:
    """As after a restored dump: what has our mark and no node is ended once it is old enough."""
    lost = make_id("node", 1, 7)
    await other.run_on_serverless()
    (theirs,) = world.cloud.alive()
    await name_installation(world, "inst_00000000000000000000")
    world.cloud.plant(lost, created_ms=world.clock.now_ms() - 61_000)
    assert is_marked(lost, "inst_00000000000000000000")
    await live_on(world, s=20)
    assert world.cloud.alive() == [theirs]


async def test_a_create_whose_answer_is_lost_is_found_beside_the_others(world: World, other: World) -> None:
    """Looked for by its own label, adopted once, and never mistaken."""
    await other.run_on_serverless()
    world.cloud.create_faults = [Fault.LOST_REPLY]
    await world.submit()
    await world.decide()
    await world.work()
    await live_on(world, s=20)
    assert (await world.newest_node()).state == "booting"
    assert len(world.cloud.alive()) == 2


@pytest.mark.parametrize("label", [None, "", "mine", make_id("node", 5, 3 << 40), "node_of_nobody"])
async def test_what_nobody_can_place_is_left_alone_and_told_once(
    world: World, label: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a label, with a person's, or with an id from before there were marks: whose it is, nothing tells."""
    ref = world.cloud.plant(label, created_ms=world.clock.now_ms() - 86_400_000)
    with caplog.at_level(logging.WARNING, logger="app.control.strangers"):
        await live_on(world, s=120)
    assert [machine.ref for machine in world.cloud.alive()] == [ref]
    assert await world.rows(t.nodes) == []
    assert [ref in record.message for record in caplog.records] == [True]


async def test_a_machine_from_before_there_were_marks_stays_its_nodes_own(world: World) -> None:
    """After an upgrade: its node's row knows it. It is kept, and its second one and what is left of it are ended."""
    job_id, node_id = await world.run_on_serverless()
    await name_installation(world, "inst_01OTHER0000000009999")  # so that the label has no mark of it
    assert not is_marked(node_id, await own_id(world))
    await live_on(world, s=120)
    assert [machine.label for machine in world.cloud.alive()] == [node_id]
    assert (await world.job(job_id)).state == "running"
    world.cloud.plant(node_id, created_ms=world.clock.now_ms() - 61_000)
    await live_on(world, s=20)
    assert [machine.ref for machine in world.cloud.alive()] == ["m-1"]
    await world.report(node_id, "exited", exit_code=0)
    await live_on(world, s=60)
    assert world.cloud.alive() == []
    assert await world.ledger_sum() == world.cloud.bill().micros


async def test_a_create_of_the_release_before_is_found_after_the_upgrade(world: World) -> None:
    """It was under way when the processes were replaced: the label in doubt has no mark, and is looked for all the
    same."""
    world.cloud.create_faults = [Fault.LOST_REPLY]
    await world.submit()
    await world.decide()
    await world.control.workers.work_once()
    await name_installation(world, "inst_01OTHER0000000009999")
    await world.restart()
    await live_on(world, s=20)
    assert (await world.newest_node()).state == "booting"
    assert len(world.cloud.alive()) == world.cloud.creates == 1


def test_the_release_before_takes_a_marked_id_for_its_own(clock: ManualClock) -> None:
    """After a roll-back it goes on with all machines: to it, a node's id is its shape."""
    ids = CountingIds(clock)
    marked_ids = {marked(ids.new("node"), "inst_01OTHER0000000009999") for _ in range(2_000)}
    assert len(marked_ids) == 2_000
    assert all(is_id(each, "node") for each in marked_ids)
    assert {each[:15] for each in marked_ids} == {ids.new("node")[:15]}, "they sort by time"
