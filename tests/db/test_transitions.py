"""The guarded door: states change only along the tables, and every passage is told."""

from __future__ import annotations

import asyncio

from sqlalchemy import select

from app.core.model.job import JobState
from app.core.model.node import NodeState
from app.core.model.run import RunState
from app.db.engine import Database
from app.db.listen import Listener
from app.db.notify import CONTROL, JOB
from app.db.tables import job_events, jobs, node_events, nodes, runs
from app.db.transitions import Event, add_job_event, bump_desired, move_job, move_node, move_run
from tests.seeds import T0_MS, seed_job, seed_node, seed_project, seed_run


async def test_a_legal_passage_changes_the_state_and_appends_an_event(database: Database) -> None:
    """queued -> starting writes the state, a version and event 1."""
    async with database.transaction() as connection:
        job_id = await seed_job(connection, await seed_project(connection))
        event = Event("job_starting", "it starts", {"node": "n"})
        assert await move_job(connection, job_id, JobState.STARTING, event, now_ms=T0_MS + 5)
        row = (await connection.execute(select(jobs).where(jobs.c.id == job_id))).one()
        told = (await connection.execute(select(job_events).where(job_events.c.job_id == job_id))).one()
    assert (row.state, row.row_version, row.event_position) == ("starting", 2, 1)
    assert (told.position, told.at_ms, told.kind, told.data) == (1, T0_MS + 5, "job_starting", {"node": "n"})


async def test_an_illegal_passage_writes_nothing(database: Database) -> None:
    """A job that is over cannot start again, and no event says that it did."""
    async with database.transaction() as connection:
        job_id = await seed_job(connection, await seed_project(connection), state=JobState.SUCCEEDED)
        assert not await move_job(connection, job_id, JobState.STARTING, Event("x", "x"), now_ms=T0_MS)
        assert (await connection.execute(select(job_events))).all() == []
        assert (await connection.execute(select(jobs.c.row_version))).scalar_one() == 1


async def test_a_run_tells_its_passage_in_the_log_of_its_job(database: Database) -> None:
    """Run events are read where users look: in the job's log, with the run named."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        job_id = await seed_job(connection, project_id, state=JobState.RUNNING, epoch=1)
        node_id = await seed_node(connection, project_id)
        run_id = await seed_run(connection, project_id, job_id, node_id)
        assert await move_run(connection, run_id, RunState.STOPPING, Event("run_stopping", "asked"), now_ms=T0_MS)
        assert not await move_run(connection, run_id, RunState.RUNNING, Event("x", "x"), now_ms=T0_MS)
        told = (await connection.execute(select(job_events))).one()
        assert (await connection.execute(select(runs.c.state))).scalar_one() == "stopping"
    assert (told.kind, told.data) == ("run_stopping", {"run_id": run_id})


async def test_a_node_has_a_log_of_its_own(database: Database) -> None:
    """booting -> ready is told in the node's log, at position 1."""
    async with database.transaction() as connection:
        node_id = await seed_node(connection, await seed_project(connection), state=NodeState.BOOTING)
        assert await move_node(connection, node_id, NodeState.READY, Event("node_ready", "up"), now_ms=T0_MS)
        told = (await connection.execute(select(node_events))).one()
    assert (told.node_id, told.position, told.kind) == (node_id, 1, "node_ready")


async def test_event_positions_have_no_gap_under_concurrent_writers(database: Database) -> None:
    """Positions are taken under the row's lock: ten writers leave 1..10, so no reader can skip one."""
    async with database.transaction() as connection:
        job_id = await seed_job(connection, await seed_project(connection))

    async def write(number: int) -> None:
        async with database.transaction() as connection:
            await add_job_event(connection, job_id, Event("note", str(number)), now_ms=T0_MS)

    await asyncio.gather(*(write(number) for number in range(10)))
    async with database.transaction() as connection:
        positions = (await connection.execute(select(job_events.c.position).order_by(job_events.c.position))).scalars()
        assert list(positions) == list(range(1, 11))


async def test_a_passage_wakes_the_control_loop_and_whoever_follows_the_job(
    database: Database, database_url: str
) -> None:
    """Wake-ups arrive after the commit, never before it."""
    listener = Listener(database_url, timeout_s=30)
    await listener.start()
    try:
        async with database.transaction() as connection:
            job_id = await seed_job(connection, await seed_project(connection))
        with listener.watch(CONTROL) as control, listener.watch(JOB, job_id) as job, listener.watch(JOB, "x") as other:
            control.clear()
            async with database.transaction() as connection:
                await move_job(connection, job_id, JobState.STARTING, Event("s", "s"), now_ms=T0_MS)
                assert not job.is_set()
            async with asyncio.timeout(60):
                await asyncio.gather(control.wait(), job.wait())
            assert not other.is_set()
    finally:
        await listener.close()


async def test_what_an_agent_should_do_has_a_version(database: Database) -> None:
    """Each change raises desired_version by one and leaves row_version alone."""
    async with database.transaction() as connection:
        node_id = await seed_node(connection, await seed_project(connection))
        await bump_desired(connection, node_id)
        row = (await connection.execute(select(nodes.c.desired_version, nodes.c.row_version))).one()
    assert tuple(row) == (2, 1)
