"""Transactions that end and move runs lock jobs, then runs, then nodes, each by ascending id: none waits for another
that waits for it, wherever the two meet."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.lifecycle import Outcome
from app.core.model.job import JobState
from app.core.model.plan import Demote
from app.core.model.run import RunEnd
from app.db import lock_order
from app.db.lock_order import lock_nodes, tenants_of
from app.db.money.ledger import read_meters
from app.db.nodes.lifecycle import lock_node
from app.services.nodes.release_node import release_node
from app.services.runs.end_run import end_run
from tests.control.crossing import Crossing
from tests.control.lock_watch import Meeting
from tests.control.world import World

Act = Callable[[Crossing], Awaitable[Any]]


@pytest.fixture
async def crossing(world: World, tmp_path: Path) -> Crossing:
    crossing = Crossing(world, tmp_path)
    await crossing.begin()
    await crossing.world.check_invariants()
    return crossing


async def _first_dies(crossing: Crossing) -> None:
    await crossing.first.says(crossing.first.source, "exited", signal=9)


async def _second_dies(crossing: Crossing) -> None:
    await crossing.second.says(crossing.second.source, "exited", signal=9)


async def _first_is_prepared(crossing: Crossing) -> None:
    await crossing.first.prepared()


async def _second_is_prepared(crossing: Crossing) -> None:
    await crossing.second.prepared()


async def _second_is_cancelled(crossing: Crossing) -> None:
    await crossing.second.cancel()


async def _first_is_paused(crossing: Crossing) -> None:
    await crossing.first.pause()


async def _first_machine_is_lost(crossing: Crossing) -> None:
    await crossing.first.loses(crossing.first.source_node)


async def _second_machine_is_lost(crossing: Crossing) -> None:
    await crossing.first.loses(crossing.second.source_node)


async def _meters_are_read(crossing: Crossing) -> None:
    world = crossing.world
    async with world.database.transaction() as connection:
        node_ids = [crossing.first.source_node, crossing.second.source_node]
        await read_meters(connection, node_ids, now_ms=world.clock.now_ms())


async def _first_is_demoted(crossing: Crossing) -> None:
    first = crossing.first
    versions = await first.versions(first.job_id, first.source)
    await first.enact(Demote(first.job_id, first.source, "for its place", versions))


async def _first_leaves_and_its_machine_is_given_back(crossing: Crossing) -> None:
    world, first = crossing.world, crossing.first
    outcome = Outcome(RunEnd.DEMOTED, JobState.WAITING, None, False, "did not leave")
    async with world.database.transaction() as connection:
        await lock_node(connection, first.source_node)
        await end_run(connection, world.ids, first.source, outcome, now_ms=world.clock.now_ms())
        await release_node(connection, world.ids, first.source_node, "for a test", now_ms=world.clock.now_ms())


PAIRS: tuple[tuple[Act, Act], ...] = (
    (_first_dies, _second_dies),
    (_second_dies, _first_dies),
    (_first_is_prepared, _second_is_cancelled),
    (_first_machine_is_lost, _second_dies),
    (_first_machine_is_lost, _second_machine_is_lost),
)
ACTS = (
    *dict.fromkeys(act for pair in PAIRS for act in pair),
    _second_is_prepared,
    _first_is_paused,
    _first_is_demoted,
    _first_leaves_and_its_machine_is_given_back,
    _meters_are_read,
)


@pytest.fixture
async def meeting(
    crossing: Crossing, database_url: str, observer: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Meeting]:
    async def beats(_node_id: str) -> None:
        return

    monkeypatch.setattr(crossing.world, "beat", beats)  # a transaction of its own, on one row
    meeting, database = Meeting(crossing, database_url, observer), crossing.world.database
    yield meeting
    crossing.world.database = database
    await meeting.close()


async def test_every_transaction_locks_in_the_order(meeting: Meeting) -> None:
    """All that may happen to two moves that cross: seen from outside after every statement."""
    for act in ACTS:
        (passage,) = await meeting.watch(act)
        assert len(passage.held) >= 3, act.__name__
        assert passage.breaches() == [], act.__name__


async def test_moves_that_cross_never_wait_for_each_other(meeting: Meeting) -> None:
    """Wherever one transaction is when the other begins: one waits at most for the other, which ends."""
    for act, other in PAIRS:
        (passage,) = await meeting.watch(act)
        for statement, _rows in passage.taken:
            await meeting.meet(act, other, after=statement)


async def test_without_the_reach_of_a_job_they_would(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two tests above can fail: a job locked without the machines of its move is found by both of them."""

    async def nothing(*_of: object) -> set[str]:
        return set()

    monkeypatch.setattr(lock_order, "_reach", nothing)
    (passage,) = await meeting.watch(_second_dies)
    assert passage.breaches() != []
    with pytest.raises(DBAPIError, match="deadlock"):
        for statement, _rows in passage.taken:
            await meeting.meet(_second_dies, _first_dies, after=statement)


async def test_a_tenant_that_comes_while_a_node_is_being_locked_is_locked_before_it(
    crossing: Crossing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The locks are given back and taken anew, in the order."""
    world, node_id = crossing.world, crossing.first.source_node
    asked: list[set[str]] = []

    async def grows(connection: AsyncConnection, node_ids: Collection[str]) -> set[str]:
        asked.append(await tenants_of(connection, node_ids))
        return {crossing.first.job_id} if len(asked) == 1 else set(asked[-1])

    async with world.database.transaction() as connection:
        await lock_nodes(connection, [node_id], grows, reach=True)
        held = await _held_by_others(crossing)
    assert len(asked) == 3
    assert asked[-1] == {crossing.first.job_id, crossing.second.job_id}
    assert {crossing.first.job_id, crossing.second.job_id, node_id} <= held


def test_rows_of_jobs_runs_and_nodes_are_locked_nowhere_else(repository_root: Path) -> None:
    """A second door would be a second order. What is left locks one row, or rows that belong to one."""
    asks = {
        path.name
        for path in sorted((repository_root / "app").rglob("*.py"))
        if re.search(r"with_for_update|FOR (NO KEY )?UPDATE", path.read_text())
    }
    one_row = {"damage.py", "join_tokens.py", "fences.py", "progress.py"}  # a job, a node, a job with its run
    in_order = {"lock_order.py", "enactment.py"}  # the latter: jobs alone, ascending, in a transaction of its own
    others = {"calibrations.py", "completions.py", "garbage.py", "hosts.py", "keys.py", "leadership.py", "objects.py",
              "operations.py", "pools.py", "projects.py", "provider_checks.py", "reservations.py", "retention.py",
              "secrets.py", "uploads.py", "versions.py"}  # fmt: skip
    assert asks == one_row | in_order | others


async def _held_by_others(crossing: Crossing) -> set[str]:
    ids = {crossing.first.job_id, crossing.second.job_id, crossing.first.source_node}
    async with crossing.world.database.transaction() as connection:
        free = await connection.execute(
            text("SELECT id FROM jobs FOR NO KEY UPDATE SKIP LOCKED"),
        )
        nodes = await connection.execute(text("SELECT id FROM nodes FOR NO KEY UPDATE SKIP LOCKED"))
        return ids - {*free.scalars(), *nodes.scalars()}
