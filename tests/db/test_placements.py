"""Rows that give jobs a place, many of a kind in one statement, and what is read before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError

from app.core.model.job import JobState
from app.core.model.merge import MergeMode
from app.core.model.node import BillingRule, BillingStart, NodeState, ProviderTraits, Tier
from app.core.model.run import RunPurpose, RunState
from app.db.decisions.enactment import Places, job_to_place, jobs_to_place, places_on
from app.db.decisions.placements import NewNode, NewRun, add_nodes, add_runs, occupy_nodes
from app.db.engine import Database
from app.db.listen import Listener
from app.db.merging.merges import open_merge_of, open_merges_of
from app.db.notify import NODE, OPERATIONS
from app.db.tables import allocations, merges, node_events, nodes, provider_operations, run_jobs, runs
from app.db.transitions import Event
from tests.control.fake_provider import make_offer
from tests.seeds import T0_MS, new_id, seed_job, seed_node, seed_project, seed_run

TRAITS = ProviderTraits(
    provider="cloud",
    tier=Tier.SERVERLESS,
    billing=BillingRule(unit_ms=7, starts=BillingStart.REQUEST, minimum_ms=9),
    startup_mean_ms=2_000,
    startup_deadline_ms=120_000,
    create_grace_ms=10_000,
    dies_with_run=True,
    preemptible=False,
)


def new_node(project_id: str, **changes: Any) -> NewNode:
    offer = make_offer("cloud", "serverless", Tier.SERVERLESS, "2.10", startup_ms=2_000)
    event = Event("node_requested", "because", {"offer": offer.key})
    node = NewNode(new_id("node"), new_id("op"), project_id, None, None, offer, TRAITS, "image:1", event)
    return replace(node, **changes)


def new_run(project_id: str, job_id: str, node_id: str, **changes: Any) -> NewRun:
    run = NewRun(new_id("run"), new_id("aloc"), project_id, job_id, 1, node_id, Tier.SERVERLESS, (0,))
    return replace(run, **changes)


async def test_machines_to_be_have_rows_events_and_operations(database: Database, database_url: str) -> None:
    """Each its own; and the workers are woken."""
    listener = Listener(database_url, timeout_s=10)
    await listener.start()
    try:
        with listener.watch(OPERATIONS) as heard:
            heard.clear()
            async with database.transaction() as connection:
                project_id = await seed_project(connection)
                job_id = await seed_job(connection, project_id)
                new = [new_node(project_id), new_node(project_id, job_id=job_id, image="other:2")]
                await add_nodes(connection, new, now_ms=T0_MS)
                await add_nodes(connection, [], now_ms=T0_MS)
            await heard.wait()
        async with database.transaction() as connection:
            rows = (await connection.execute(select(nodes).order_by(nodes.c.id))).all()
            events = (await connection.execute(select(node_events))).all()
            operations = (
                await connection.execute(select(provider_operations).order_by(provider_operations.c.id))
            ).all()
    finally:
        await listener.close()
    assert [(row.id, row.rented_for_job_id, row.image) for row in rows] == [
        (new[0].node_id, None, "image:1"),
        (new[1].node_id, job_id, "other:2"),
    ]
    assert {(row.state, row.event_position, row.row_version, row.price_micros_per_hour) for row in rows} == {
        ("requested", 1, 1, 2_100_000)
    }
    assert {(row.expected_ready_ms - T0_MS, row.startup_deadline_ms - T0_MS) for row in rows} == {(2_000, 120_000)}
    assert {(row.position, row.kind, row.message) for row in events} == {(1, "node_requested", "because")}
    told = [(row.node_id, row.kind, row.state, row.project_id, row.not_before_ms) for row in operations]
    assert told == [(one.node_id, "create", "pending", project_id, T0_MS) for one in new]


async def test_runs_hold_their_epochs_and_gpus_of_unlike_numbers(database: Database) -> None:
    """A companion comes with the run whose process it shares. What has no layout has NULL, and not the null of JSON."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        lead, companion, third = [await seed_job(connection, project_id) for _ in range(3)]
        node_id = await seed_node(connection, project_id, gpu_count=8)
        first = new_run(project_id, lead, node_id, gpu_indices=(0, 3, 5), layout={"gpus": 3})
        new = [
            first,
            new_run(project_id, companion, node_id, epoch=7, companion_of=first.run_id, gpu_indices=range(2)),
            new_run(project_id, third, node_id, gpu_indices=(), state=RunState.STANDBY, purpose=RunPurpose.PROFILE),
        ]
        await add_runs(connection, new, now_ms=T0_MS)
        await add_runs(connection, [], now_ms=T0_MS)
        rows = (await connection.execute(select(runs).order_by(runs.c.id))).all()
        held = (await connection.execute(select(allocations.c.gpu_indices).order_by(allocations.c.id))).scalars().all()
        epochs = (await connection.execute(select(run_jobs.c.job_id, run_jobs.c.epoch))).all()
        without = await connection.execute(text("SELECT count(*) FROM runs WHERE layout IS NULL"))
        assert without.scalar_one() == 2
    assert [(row.state, row.purpose, row.companion_of) for row in rows] == [
        ("assigned", "train", None),
        ("assigned", "train", first.run_id),
        ("standby", "profile", None),
    ]
    assert held == [[0, 3, 5], [0, 1], []]
    assert dict(map(tuple, epochs)) == {lead: 1, companion: 7, third: 1}
    assert rows[0].layout == {"gpus": 3}


async def test_an_epoch_that_was_given_is_not_given_again(database: Database) -> None:
    """The database is the last to say so, for all that are written together."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        job_id, other = [await seed_job(connection, project_id) for _ in range(2)]
        node_id = await seed_node(connection, project_id)
        await seed_run(connection, project_id, job_id, node_id, epoch=1)
        with pytest.raises(IntegrityError):
            async with connection.begin_nested():
                both = [new_run(project_id, one, node_id) for one in (other, job_id)]
                await add_runs(connection, both, now_ms=T0_MS)
        assert len((await connection.execute(select(runs))).all()) == 1


async def test_a_node_is_stale_and_told_once_for_each_run_that_it_is_given(
    database: Database, database_url: str
) -> None:
    """Its versions count them; one that is given none stays as it is."""
    listener = Listener(database_url, timeout_s=10)
    await listener.start()
    try:
        async with database.transaction() as connection:
            project_id = await seed_project(connection)
            ids = [await seed_node(connection, project_id, idle_since_ms=5) for _ in range(3)]
        with listener.watch(NODE, ids[0]) as heard:
            heard.clear()
            async with database.transaction() as connection:
                await occupy_nodes(connection, [ids[0], ids[1], ids[0]])
                await occupy_nodes(connection, [])
            await heard.wait()
        async with database.transaction() as connection:
            rows = (await connection.execute(select(nodes).order_by(nodes.c.id))).all()
    finally:
        await listener.close()
    seen = [(row.row_version, row.desired_version, row.idle_since_ms) for row in rows]
    assert seen == [(3, 3, None), (2, 2, None), (1, 1, 5)]


async def test_jobs_are_read_with_the_epoch_after_all_that_were_given(database: Database) -> None:
    """Also after one that was set aside for a move that came to nothing; what does not exist is missing."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        node_id = await seed_node(connection, project_id)
        fresh = await seed_job(
            connection, project_id, resources={"base_image": "my/image"}, plan="9 GB", key_id="key_1"
        )
        moved = await seed_job(connection, project_id, state="a newer one", epoch=4, pause_reason="user")
        for epoch in (2, 6):
            await seed_run(connection, project_id, moved, node_id, epoch=epoch)
        found = await jobs_to_place(connection, [fresh, moved, "job_gone"])
        assert await job_to_place(connection, "job_gone") is None
        assert await job_to_place(connection, moved) == found[moved]
    assert found.keys() == {fresh, moved}
    one, other = found[fresh], found[moved]
    assert (one.next_epoch, one.base_image, one.plan, one.key_id, one.leaving) == (
        1,
        "my/image",
        "9 GB",
        "key_1",
        False,
    )
    assert (other.next_epoch, other.state, other.leaving) == (7, JobState.PAUSED, True)


async def test_places_are_those_that_no_open_allocation_holds(database: Database) -> None:
    """What was held before is free; a state of a newer release is no state to place anything in."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        busy = await seed_node(connection, project_id, gpu_count=4)
        odd = await seed_node(connection, project_id, state="a newer one")
        for gpus in ((0,), (2, 3), (1,)):
            job_id = await seed_job(connection, project_id)
            await seed_run(connection, project_id, job_id, busy, gpu_indices=gpus)
        await connection.execute(allocations.update().where(allocations.c.gpu_indices == [1]).values(to_ms=T0_MS))
        found = await places_on(connection, [busy, odd, "node_gone"])
        assert await places_on(connection, []) == {}
    assert found[busy] == Places(NodeState.READY, Tier.MARKETPLACE, 4, frozenset({0, 2, 3}))
    assert found[odd].state is NodeState.UNREACHABLE
    assert found.keys() == {busy, odd}


async def test_open_merges_are_found_by_either_job(database: Database) -> None:
    """The same as of one job; those that are over are none."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        ids = [await seed_job(connection, project_id) for _ in range(5)]
        for lead, companion, state in ((0, 1, "open"), (2, 3, "ended"), (3, 0, "void")):
            row = {"id": new_id("merge"), "project_id": project_id, "lead_job_id": ids[lead], "gpus": 1}
            row |= {"companion_job_id": ids[companion], "mode": MergeMode.TOGETHER, "state": state, "score": 0.5}
            await connection.execute(merges.insert().values(row | {"gain": 0.1, "begun_ms": T0_MS, "reason": "r"}))
        found = await open_merges_of(connection, ids[1:])
        assert found == {ids[1]: await open_merge_of(connection, ids[1])}
        assert (await open_merges_of(connection, ids)).keys() == {ids[0], ids[1]}
        assert await open_merges_of(connection, []) == {}
