"""Starts, assignments and rentals are written together: what that costs, what of it fails, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.control.dropping import Dropped
from app.control.enact import enact_apart
from app.control.placing import Placing
from app.core.model.offer import Offer
from app.core.model.plan import Action, Assign, Provision, Release, Start
from app.db import tables as t
from app.db.engine import Database, make_engine
from tests.conftest import CountingIds, ManualClock
from tests.control.batching import REAL
from tests.control.dying import DyingDatabase, KilledError
from tests.control.fake_provider import FakeProvider
from tests.control.lock_watch import LockWatch, TakenBack
from tests.control.pairing import Pair
from tests.control.poison import poison
from tests.control.test_enact import _ready_node, _versions
from tests.control.test_last_gpu import _waiting_for_a_lock
from tests.control.world import World, make_settings
from tests.scale.statements import counted
from tests.seeds import seed_node


async def _starts(world: World, count: int, **columns: Any) -> list[Start]:
    job_ids = [await world.submit(**columns) for _ in range(count)]
    return [Start(job_id, world.cloud.on_offer[0], "because", await _versions(world, job_id)) for job_id in job_ids]


async def _enact(world: World, actions: Sequence[Action]) -> tuple[Dropped, ...]:
    return await enact_apart(world.control.context, actions, now_ms=world.clock.now_ms(), at_once=100)


async def _started(world: World, actions: Sequence[Any]) -> list[bool]:
    return [(await world.job(action.job_id)).state == "starting" for action in actions]


async def test_many_starts_take_as_many_statements_as_a_few(world: World) -> None:
    """What is sent does not grow with the plan."""
    sizes = []
    for count in (3, 30):
        actions = await _starts(world, count)
        with counted() as sent:
            assert await _enact(world, actions) == ()
        sizes.append(sent.count)
        assert sent.most_parameters <= 50
        assert all(await _started(world, actions))
    assert sizes[0] == sizes[1] <= 30
    await world.check_invariants()


async def test_one_that_fails_costs_a_few_tries_and_not_one_for_each_of_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sixteen that fail together, halves are tried, and halves of the half that fails."""
    actions, tried = await _starts(world, 16), []
    write = Placing.write

    async def noted(placing: Placing, connection: AsyncConnection) -> None:
        tried.append(len(placing._runs))
        await write(placing, connection)

    monkeypatch.setattr(Placing, "write", noted)
    await poison(world, "run_jobs", actions[5].job_id)
    (dropped,) = await _enact(world, actions)
    assert (dropped.action, dropped.why) == (actions[5], "it failed")
    assert await _started(world, actions) == [number != 5 for number in range(16)]
    assert tried == [16, 8, 4, 4, 2, 1, 1, 2, 8]
    await world.check_invariants()


# Rows and actions that are hostile


async def test_a_row_that_cannot_be_read_is_its_own_job_s_failure(world: World) -> None:
    """What is wrong with the resources of one job keeps no other from its start."""
    actions = await _starts(world, 5)
    await world.set_job(actions[2].job_id, resources=["no", "object"])
    (dropped,) = await _enact(world, actions)
    assert dropped.action is actions[2]
    assert isinstance(dropped.error, AttributeError)
    assert await _started(world, actions) == [True, True, False, True, True]


async def test_an_action_that_cannot_even_be_judged_is_dropped_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was sent yet that would have to be taken back: the others are written with the first try."""
    actions, written_ = await _starts(world, 3), []
    write = Placing.write

    async def noted(placing: Placing, connection: AsyncConnection) -> None:
        written_.append(len(placing._runs))
        await write(placing, connection)

    monkeypatch.setattr(Placing, "write", noted)
    broken = replace(actions[1], offer=replace(actions[1].offer, price_per_hour=None))  # type: ignore[arg-type]
    (dropped,) = await _enact(world, [actions[0], broken, actions[2]])
    assert dropped.action is broken
    assert isinstance(dropped.error, AttributeError)
    assert written_ == [2]


@pytest.mark.parametrize("word", ["a\x00b", "\ud800"], ids=["NUL", "half a character"])
async def test_words_that_the_database_does_not_take_are_one_action_s_failure(world: World, word: str) -> None:
    """They travel in an array with the words of all others, which is refused as a whole."""
    actions = await _starts(world, 4)
    actions[1] = replace(actions[1], reason=word)
    (dropped,) = await _enact(world, actions)
    assert dropped.action is actions[1]
    assert dropped.error is not None
    assert await _started(world, actions) == [True, False, True, True]


async def test_where_every_one_fails_every_one_is_dropped_and_told_why(world: World) -> None:
    """In their order, and the transaction holds what else is in the plan."""
    actions = await _starts(world, 5)
    async with world.database.transaction() as connection:
        idle = await seed_node(connection, world.project_id, provider="cloud")
    await poison(world, "run_jobs", "job_")
    dropped = await _enact(world, [*actions, Release(idle, "idle", await _versions(world, idle))])
    assert [one.action for one in dropped] == actions
    assert (await world.node(idle)).state == "terminating"
    assert len(await world.rows(t.runs)) == 0


# The order of a plan


async def test_an_assignment_after_a_release_of_its_node_is_dropped(world: World) -> None:
    """A plan is enacted in its order: a batch ends where another kind of action comes."""
    first, second = await world.submit(), await world.submit()
    node_id = await _ready_node(world, first)
    keep = Assign(first, node_id, (0,), "because", ())
    gone = Assign(second, node_id, (1,), "because", ())
    (dropped,) = await _enact(world, [Release(node_id, "idle", ()), keep])
    assert dropped.why == f"{node_id} is not ready"
    other = await _ready_node(world, first)
    kept = [replace(keep, node_id=other), Release(other, "idle", ()), replace(gone, node_id=other)]
    (dropped,) = await _enact(world, kept)
    assert dropped.why == f"{other} holds a run"
    assert await _started(world, [keep, gone]) == [True, True]


async def test_events_of_a_job_come_in_the_order_of_its_actions(world: World) -> None:
    """Of one that is rented for, started, and started again, in one plan."""
    (start,) = await _starts(world, 1)
    rent = Provision(world.project_id, start.job_id, world.cloud.on_offer[1], "for later", ())
    (dropped,) = await _enact(world, [rent, start, start])
    assert "does not wait for a place" in dropped.why
    assert await world.events(start.job_id) == ["node_rented", "starting", "action_dropped"]
    positions = [row.position for row in await world.rows(t.job_events) if row.job_id == start.job_id]
    assert positions == [1, 2, 3]
    assert (await world.job(start.job_id)).event_position == 3


async def test_a_limit_is_reached_within_a_plan(database: Database, database_url: str, clock: ManualClock) -> None:
    """Two machines at real providers are allowed at first: of five starts in one plan, the first two are made."""
    world = World(database, make_settings(database_url, vast_api_key="k" * 20), clock, CountingIds(clock))
    world.cloud = FakeProvider(clock, name=REAL)
    world.control = world.new_control()
    await world.open()
    actions = await _starts(world, 5)
    dropped = await _enact(world, actions)
    assert [one.action for one in dropped] == actions[2:]
    assert {one.why.partition(":")[0] for one in dropped} == {"2 of at most 2 machines at real providers are rented"}
    assert await _started(world, actions) == [True, True, False, False, False]


# Deaths and locks


@pytest.fixture
async def crowd(world: World, tmp_path: Path) -> list[Action]:
    """Starts, of which one is a pair's, assignments to one node, and a rental."""
    pair = Pair(world, tmp_path)
    await pair.merge()
    first, second, third = [await world.submit() for _ in range(3)]
    node_id = await _ready_node(world, first)
    offer: Offer = world.cloud.on_offer[0]
    return [
        Start(pair.lead.job_id, offer, "a pair", await _versions(world, pair.lead.job_id)),
        Assign(first, node_id, (0,), "because", await _versions(world, first, node_id)),
        Start(second, offer, "because", await _versions(world, second)),
        Assign(third, node_id, (1,), "because", await _versions(world, third, node_id)),
        Provision(world.project_id, third, world.cloud.on_offer[1], "for later", await _versions(world, third)),
    ]


async def test_a_death_after_any_statement_of_a_batch_leaves_all_or_nothing(
    world: World, crowd: list[Action], database_url: str
) -> None:
    """Then another process enacts the same plan, and nothing of it is stale: nothing at all was written."""
    context, engine = world.control.context, make_engine(database_url, pool_size=2, timeout_s=60)
    before = [len(await world.rows(table)) for table in (t.nodes, t.runs, t.job_events)]
    try:
        for lifetime in range(1, 100):
            object.__setattr__(context, "database", DyingDatabase(engine, lifetime))
            try:
                assert await _enact(world, crowd) == ()
                break
            except KilledError:
                assert [len(await world.rows(table)) for table in (t.nodes, t.runs, t.job_events)] == before
                await world.check_invariants()
    finally:
        object.__setattr__(context, "database", world.database)
        await engine.dispose()
    assert lifetime > 15
    assert len(await world.rows(t.run_jobs)) == 5
    assert {row.epoch for row in await world.rows(t.run_jobs)} == {1}
    await world.check_invariants()


@pytest.fixture
async def watched(world: World, database_url: str, observer: asyncpg.Connection) -> AsyncIterator[LockWatch]:
    """While a test is in it: transactions are watched, and taken back."""
    engine, database = make_engine(database_url, pool_size=4, timeout_s=60), world.database
    object.__setattr__(world.control.context, "database", TakenBack(engine))
    with LockWatch(engine, observer) as watch:
        yield watch
    object.__setattr__(world.control.context, "database", database)
    await engine.dispose()


async def test_a_batch_locks_jobs_then_nodes_and_nothing_later(
    world: World, crowd: list[Action], watched: LockWatch
) -> None:
    """All rows are locked before anything is read to be judged, and in the order that everybody shares."""
    assert await _enact(world, crowd) == ()
    (passage,) = [one for one in watched.passages if one.taken]
    assert passage.breaches() == []
    assert len(passage.held) == 6  # five jobs, of which two are a pair, and the node
    last, _rows = passage.taken[-1]
    assert last <= 10 < passage.statements


async def test_a_job_that_is_cancelled_while_a_batch_waits_for_it_is_left_out(world: World) -> None:
    """The batch waits for the row, finds that it has moved on, and starts the others."""
    actions = await _starts(world, 3)
    async with world.database.transaction() as connection:
        late = actions[1].job_id
        await connection.execute(
            update(t.jobs).where(t.jobs.c.id == late).values(state="cancelled", row_version=t.jobs.c.row_version + 1)
        )
        behind = asyncio.create_task(_enact(world, actions))
        await _waiting_for_a_lock(world)
    (dropped,) = await behind
    assert "has moved on" in dropped.why
    assert await _started(world, actions) == [True, False, True]
