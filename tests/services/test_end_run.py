"""Ending runs and nodes: once, fenced, and with nothing left behind."""

from __future__ import annotations

import asyncio
from typing import Any

from sqlalchemy import Table, select

from app.core.lifecycle import Outcome, ProcessExit, judge_exit
from app.core.model.job import JobEnd, JobState
from app.core.model.node import NodeState, Tier
from app.core.model.run import RunEnd
from app.db.engine import Database
from app.db.tables import allocations, job_events, jobs, nodes, provider_operations, runs
from app.services.nodes.lose_node import lose_node
from app.services.nodes.release_node import release_node
from app.services.runs.end_run import end_run
from tests.conftest import CountingIds
from tests.seeds import T0_MS, seed_job, seed_node, seed_project, seed_run

DONE = Outcome(RunEnd.FINISHED, JobState.SUCCEEDED, JobEnd.FINISHED, False, "exit code 0")
DEMOTED = Outcome(RunEnd.DEMOTED, JobState.WAITING, None, False, "saved and left")


async def world(database: Database, tier: Tier = Tier.MARKETPLACE, **job: object) -> tuple[str, str, str]:
    """One running job on one ready node: (job, run, node)."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        columns = {"state": JobState.RUNNING, "epoch": 1, "saves_ms": T0_MS} | job
        job_id = await seed_job(connection, project_id, **columns)
        node_id = await seed_node(connection, project_id, tier=tier, token_sha256=b"t")
        run_id = await seed_run(connection, project_id, job_id, node_id, tier=tier)
    return job_id, run_id, node_id


async def one(database: Database, table: Table) -> Any:
    """The only row of a table."""
    async with database.transaction() as connection:
        return (await connection.execute(select(table))).one()


async def test_a_finished_run_leaves_its_job_succeeded_and_its_node_idle(database: Database, ids: CountingIds) -> None:
    """On a rented node: job over, GPUs free, epoch raised, the node stays."""
    await world(database)
    async with database.transaction() as connection:
        run_id = (await connection.execute(select(runs.c.id))).scalar_one()
        assert await end_run(connection, ids, run_id, DONE, now_ms=T0_MS + 60_000)
    job, run, node = await one(database, jobs), await one(database, runs), await one(database, nodes)
    assert (job.state, job.end_reason, job.epoch, job.ended_ms) == ("succeeded", "finished", 2, T0_MS + 60_000)
    assert (run.state, run.end_reason) == ("ended", "finished")
    assert (node.state, node.idle_since_ms, node.desired_version) == ("ready", T0_MS + 60_000, 2)
    assert (await one(database, allocations)).to_ms == T0_MS + 60_000


async def test_a_serverless_node_goes_with_its_run(database: Database, ids: CountingIds) -> None:
    """The sandbox is ended in the same transaction, and its time counts against the budget."""
    _, run_id, _ = await world(database, Tier.SERVERLESS)
    async with database.transaction() as connection:
        assert await end_run(connection, ids, run_id, DEMOTED, now_ms=T0_MS + 30_000)
    job, node, operation = (
        await one(database, jobs),
        await one(database, nodes),
        await one(database, provider_operations),
    )
    assert (job.state, job.serverless_used_ms, job.moves, job.faults) == ("waiting", 30_000, 1, 0)
    assert (node.state, node.token_sha256) == ("terminating", None)
    assert (operation.kind, operation.state) == ("terminate", "pending")


async def test_a_run_ends_once_however_many_find_out(database: Database, ids: CountingIds) -> None:
    """Of ten concurrent endings exactly one counts."""
    _, run_id, _ = await world(database)

    async def finish() -> bool:
        async with database.transaction() as connection:
            return await end_run(connection, ids, run_id, DONE, now_ms=T0_MS)

    assert sorted(await asyncio.gather(*(finish() for _ in range(10)))) == [False] * 9 + [True]
    async with database.transaction() as connection:
        kinds = (await connection.execute(select(job_events.c.kind))).scalars().all()
    assert sorted(kinds) == ["run_finished", "succeeded"]


async def test_a_lost_node_hands_its_job_on_and_is_still_ended(database: Database, ids: CountingIds) -> None:
    """The job waits with a fault counted and its epoch raised; the machine is terminated, dead or not."""
    _, _, node_id = await world(database)
    async with database.transaction() as connection:
        assert await lose_node(connection, ids, node_id, "its agent is silent", now_ms=T0_MS, fault_budget=3)
    job, run, node = await one(database, jobs), await one(database, runs), await one(database, nodes)
    assert (job.state, job.faults, job.epoch, job.moves) == ("waiting", 1, 2, 0)
    assert (run.end_reason, node.state) == ("node_lost", "terminating")


async def test_a_job_that_lost_too_many_nodes_fails_with_that_reason(database: Database, ids: CountingIds) -> None:
    """The fault budget is a bound, and the reason says whose fault it was."""
    _, _, node_id = await world(database, faults=3)
    async with database.transaction() as connection:
        await lose_node(connection, ids, node_id, "gone", now_ms=T0_MS, fault_budget=3)
    job = await one(database, jobs)
    assert (job.state, job.end_reason) == ("failed", "node_lost")


async def test_releasing_twice_asks_the_provider_once(database: Database, ids: CountingIds) -> None:
    """The second release finds nothing to do."""
    async with database.transaction() as connection:
        node_id = await seed_node(connection, await seed_project(connection))
        assert await release_node(connection, ids, node_id, "idle", now_ms=T0_MS)
        assert not await release_node(connection, ids, node_id, "idle", now_ms=T0_MS)
    assert (await one(database, provider_operations)).kind == "terminate"


async def test_a_terminated_node_is_never_released(database: Database, ids: CountingIds) -> None:
    """What is over stays over."""
    async with database.transaction() as connection:
        node_id = await seed_node(connection, await seed_project(connection), state=NodeState.TERMINATED)
        assert not await release_node(connection, ids, node_id, "idle", now_ms=T0_MS)


async def test_an_avoided_offer_is_remembered_once(database: Database, ids: CountingIds) -> None:
    """Failing twice on one offer leaves one entry, and the back-off only grows."""
    job_id, run_id, _ = await world(database, avoided_offers=["local/o1"], not_before_ms=T0_MS + 9)
    async with database.transaction() as connection:
        await end_run(connection, ids, run_id, DEMOTED, now_ms=T0_MS, avoid_offer="local/o1", not_before_ms=T0_MS + 1)
    job = await one(database, jobs)
    assert (job.id, job.avoided_offers, job.not_before_ms) == (job_id, ["local/o1"], T0_MS + 9)


def test_the_verdict_on_an_exit_is_the_lifecycles() -> None:
    """A killed process is a fault, an exception is the user's."""
    killed = judge_exit(ProcessExit(signal=9), asked_to_checkpoint=False, faults=0, fault_budget=3)
    raised = judge_exit(ProcessExit(exit_code=1), asked_to_checkpoint=False, faults=0, fault_budget=3)
    assert (killed.job_state, killed.fault, raised.job_end) == (JobState.WAITING, True, JobEnd.USER_CODE_FAILED)
