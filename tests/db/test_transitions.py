"""The guarded door: states change only along the tables, and every passage is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import select

from app.core.model.job import JobState
from app.core.model.node import NodeState
from app.core.model.run import RunState
from app.db.engine import Database
from app.db.listen import Listener
from app.db.notify import CONTROL, JOB
from app.db.tables import job_events, jobs, node_events, nodes, runs
from app.db.transitions import Entry, Event, add_job_event, bump_desired, move_job, move_node, move_run, tell_jobs
from app.errors import InvariantBroken
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


async def test_many_jobs_are_told_in_one_statement_and_those_that_begin_are_starting(database: Database) -> None:
    """Of each job in the order given, at positions without a gap; only who begins has a new state and version."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        told: dict[str, Any] = {"event_position": 3, "wait_reason": "waits"}
        begins, other = [await seed_job(connection, project_id, epoch=4, **told) for _ in range(2)]
        entries = [
            Entry(other, Event("first", "a", {"n": 1})),
            Entry(begins, Event("dropped", "b")),
            Entry(begins, Event("starting", "c", {"epoch": 5}), begins=5),
            Entry(other, Event("second", "d")),
        ]
        await tell_jobs(connection, entries, now_ms=T0_MS + 7)
        rows = {row.id: row for row in await connection.execute(select(jobs))}
        events = (await connection.execute(select(job_events).order_by(*job_events.primary_key))).all()
    seen = {job_id: [(row.position, row.kind, row.data) for row in events if row.job_id == job_id] for job_id in rows}
    assert seen[begins] == [(4, "dropped", {}), (5, "starting", {"epoch": 5})]
    assert seen[other] == [(4, "first", {"n": 1}), (5, "second", {})]
    assert {row.at_ms for row in events} == {T0_MS + 7}
    facts = {
        one: (row.state, row.epoch, row.wait_reason, row.row_version, row.event_position) for one, row in rows.items()
    }
    assert facts[begins] == ("starting", 5, None, 2, 5)
    assert facts[other] == ("queued", 4, "waits", 1, 5)


@pytest.mark.parametrize("state", ["running", "paused", "cancelled", "of a newer release"])
async def test_of_jobs_that_begin_one_that_may_not_is_heard(database: Database, state: str) -> None:
    """It is for the caller to undo the others, and a job that does not exist is no different."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        good, bad = await seed_job(connection, project_id), await seed_job(connection, project_id, state=state)
        for job_id in (bad, "job_gone"):
            entries = [Entry(one, Event("starting", "it starts"), begins=1) for one in (good, job_id)]
            with pytest.raises(InvariantBroken, match="may not start"):
                async with connection.begin_nested():
                    await tell_jobs(connection, entries, now_ms=T0_MS)
        await tell_jobs(connection, [Entry(bad, Event("told", "whatever its state"))], now_ms=T0_MS)
        await tell_jobs(connection, [], now_ms=T0_MS)
        told = (await connection.execute(select(job_events))).one()
        assert (told.job_id, told.kind) == (bad, "told")
        assert (await connection.execute(select(jobs.c.state).where(jobs.c.id == good))).scalar_one() == "queued"


async def test_whoever_follows_one_of_many_jobs_is_woken_and_the_loop_when_one_begins(
    database: Database, database_url: str
) -> None:
    """As for each by itself: an event alone is no reason to decide anew."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        first, second = [await seed_job(connection, project_id) for _ in range(2)]
    listener = Listener(database_url, timeout_s=10)
    await listener.start()
    try:
        with listener.watch(JOB, first) as one, listener.watch(JOB, second) as two, listener.watch(CONTROL) as loop:
            for begins, woken in ((None, False), (1, True)):
                for heard in (one, two, loop):
                    heard.clear()
                entries = [Entry(first, Event("a", "a"), begins=begins), Entry(second, Event("b", "b"))]
                async with database.transaction() as connection:
                    await tell_jobs(connection, entries, now_ms=T0_MS)
                async with asyncio.timeout(30):
                    await one.wait()
                    await two.wait()
                    if woken:
                        await loop.wait()
                assert loop.is_set() == woken
    finally:
        await listener.close()
