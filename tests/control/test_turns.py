"""Projects have their turn in everything that the loop does for all of them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from app.db import tables as t
from app.db.nodes.operations import (
    LeasedOperation,
    OperationKind,
    OperationState,
    Settlement,
    add_operation,
    claim,
    settle,
)
from tests.control.world import World
from tests.seeds import seed_app, seed_job, seed_node, seed_project

CROWD = 300


async def operations(world: World, project_id: str, count: int) -> list[str]:
    """So many nodes of the project, each to be made."""
    ids = []
    async with world.database.transaction() as connection:
        for _ in range(count):
            node_id = await seed_node(connection, project_id, state="requested")
            ids.append(world.ids.new("op"))
            now_ms = world.clock.now_ms()
            await add_operation(connection, ids[-1], node_id, "fake", OperationKind.CREATE, now_ms=now_ms)
    return ids


async def take(world: World, limit: int) -> list[LeasedOperation]:
    return await claim(world.database, limit=limit, lease_s=30, now_ms=world.clock.now_ms())


async def project(world: World) -> str:
    async with world.database.transaction() as connection:
        return await seed_project(connection)


async def test_operations_of_a_crowd_do_not_hold_up_another_projects_one(world: World) -> None:
    """Whoever has least under way is served next, although the crowd was there first; else the oldest is."""
    crowd = await operations(world, world.project_id, 30)
    world.clock.advance(s=5)
    others = await operations(world, await project(world), 2)
    assert [one.operation_id for one in await take(world, 4)] == sorted([crowd[0], crowd[1], *others])
    assert [one.operation_id for one in await take(world, 1)] == [crowd[2]]
    world.clock.advance(s=5)
    last = await operations(world, await project(world), 1)
    assert [one.operation_id for one in await take(world, 1)] == last
    assert [one.operation_id for one in await take(world, 2)] == crowd[3:5]


async def test_an_operation_that_is_over_or_not_due_takes_no_turn(world: World) -> None:
    """What counts is what is under way now; what is put off is left to its time."""
    first, second, third = await operations(world, world.project_id, 3)
    (held,) = await take(world, 1)
    assert held.operation_id == first
    async with world.database.transaction() as connection:
        later_ms = world.clock.now_ms() + 10_000
        assert await settle(connection, Settlement(held, OperationState.PENDING, later_ms))
        await connection.execute(
            t.provider_operations.update().where(t.provider_operations.c.id == second).values(not_before_ms=later_ms)
        )
    assert [one.operation_id for one in await take(world, 5)] == [third]
    world.clock.advance(s=11)
    assert [one.operation_id for one in await take(world, 5)] == [first, second]


async def test_operations_of_an_earlier_release_are_served_too(world: World) -> None:
    """Rows that name no project are a project of their own."""
    ids = await operations(world, world.project_id, 3)
    async with world.database.transaction() as connection:
        await connection.execute(text("UPDATE provider_operations SET project_id = '' WHERE id = :id"), {"id": ids[2]})
    assert [one.operation_id for one in await take(world, 2)] == [ids[0], ids[2]]
    assert [one.operation_id for one in await take(world, 2)] == [ids[1]]


async def crowd_of_jobs(world: World, count: int) -> None:
    """Jobs of the world's project, more urgent than any that comes later."""
    deadline_ms = world.clock.now_ms() + 900_000
    async with world.database.transaction() as connection:
        first = await seed_job(connection, world.project_id, world.app, id="job_0", deadline_ms=deadline_ms)
        columns = ", ".join(column.name for column in t.jobs.columns if column.name != "id")
        await connection.execute(
            text(f"INSERT INTO jobs (id, {columns}) SELECT 'job_0' || n, {columns} "
                 "FROM jobs, generate_series(1, :count) AS n WHERE id = :first"),
            {"count": count - 1, "first": first},
        )  # fmt: skip


async def late_job(world: World, **columns: Any) -> str:
    """Of a project that has nothing yet."""
    async with world.database.transaction() as connection:
        project_id = await seed_project(connection)
        app = await seed_app(connection, project_id)
        late_ms = world.clock.now_ms() + 86_400_000
        return await seed_job(connection, project_id, app, deadline_ms=late_ms, **columns)


async def test_one_project_with_a_crowd_does_not_delay_the_first_start_of_another(world: World) -> None:
    """Submitted behind hundreds, with places for few: started by the next decision, and its machine is ordered before
    those of the crowd."""
    world.settings.serverless_limit = 6
    await world.restart()
    await crowd_of_jobs(world, CROWD)
    late = await late_job(world)
    await world.decide()
    started = [row.id for row in await world.rows(t.jobs) if row.state == "starting"]
    assert late in started
    assert len(started) == 6
    first = await take(world, 2)
    assert await world.node_of(late) in {one.node_id for one in first}


async def test_a_place_that_falls_free_goes_to_the_project_that_has_none(world: World) -> None:
    """All places are taken by a crowd when the other project comes: it gets the first that is given back."""
    world.settings.serverless_limit = 2
    await world.restart()
    await crowd_of_jobs(world, CROWD)
    await world.decide()
    await world.work()
    late = await late_job(world)
    await world.decide()
    waits = (await world.job(late)).wait_reason
    assert waits == "waits for a serverless place: 2 of 2 are taken"
    job_id = next(row.id for row in await world.rows(t.jobs) if row.state == "starting")
    node_id = await world.node_of(job_id)
    await world.boot(node_id)
    await world.report(node_id, "running")
    await world.report(node_id, "exited", exit_code=0)
    await world.work()
    await world.decide()
    assert (await world.job(late)).state == "starting"
