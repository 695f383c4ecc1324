"""What ends one side of a pair meets what ends the other: both jobs are locked first, and in one order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from app.core.model.plan import Split, Start
from app.db.money.ledger import read_meters
from app.db.tables import merges
from tests.control.lock_watch import Meeting
from tests.control.pairing import Pair
from tests.control.world import World


async def _lead_dies(pair: Pair) -> None:
    await pair.says(pair.lead, "exited", 9, signal=9)


async def _lead_fails(pair: Pair) -> None:
    await pair.says(pair.lead, "exited", 9, exit_code=1)


async def _companion_finishes(pair: Pair) -> None:
    await pair.says(pair.companion, "exited", 9, tokens=7, exit_code=0)


async def _companion_is_cancelled(pair: Pair) -> None:
    await pair.companion.cancel()


async def _lead_is_paused(pair: Pair) -> None:
    await pair.lead.pause()


async def _both_are_demoted(pair: Pair) -> None:
    await pair.demote()


async def _they_are_split(pair: Pair) -> None:
    row = (await pair.world.rows(merges))[-1]
    versions = ((row.id, row.row_version),)
    await pair.enact(Split(pair.lead.job_id, pair.companion.job_id, row.id, "no better", versions))


async def _machine_is_lost(pair: Pair) -> None:
    await pair.lead.loses(pair.node_id)


async def _meter_is_read(pair: Pair) -> None:
    async with pair.world.database.transaction() as connection:
        await read_meters(connection, [pair.node_id], now_ms=pair.world.clock.now_ms())


MEETINGS = (
    (_companion_is_cancelled, _lead_dies),
    (_both_are_demoted, _companion_finishes),
    (_machine_is_lost, _lead_is_paused),
    (_lead_fails, _meter_is_read),
)
ACTS = (*(act for pair in MEETINGS for act in pair), _they_are_split)


@pytest.fixture
async def pair(world: World, tmp_path: Path) -> Pair:
    pair = Pair(world, tmp_path)
    await pair.begin()
    return pair


@pytest.fixture
async def meeting(
    pair: Pair, database_url: str, observer: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Meeting]:
    async def beats(_node_id: str) -> None:
        return

    monkeypatch.setattr(pair.world, "beat", beats)  # a transaction of its own, on one row
    meeting, database = Meeting(pair, database_url, observer), pair.world.database
    yield meeting
    pair.world.database = database
    await meeting.close()


async def test_both_sides_are_locked_in_the_order(meeting: Meeting, pair: Pair) -> None:
    """Whichever side is meant: both jobs, then both runs, then their machine."""
    both = {(0, pair.lead.job_id), (0, pair.companion.job_id)}
    for act in ACTS:
        *_, passage = await meeting.watch(act)
        assert both <= passage.held, act.__name__
        assert passage.breaches() == [], act.__name__


async def test_ends_of_both_sides_never_wait_for_each_other(meeting: Meeting) -> None:
    """Wherever one transaction is when the other begins."""
    for act, other in MEETINGS:
        *_, passage = await meeting.watch(act)
        for statement, _rows in passage.taken:
            await meeting.meet(act, other, after=statement)


async def test_the_two_places_of_a_pair_are_taken_in_the_order(
    world: World, tmp_path: Path, database_url: str, observer: asyncpg.Connection
) -> None:
    """Placing the lead locks the companion before anything is written."""
    pair = Pair(world, tmp_path)
    await pair.merge()
    database, meeting = world.database, Meeting(pair, database_url, observer)
    try:
        *_, passage = await meeting.watch(_is_placed)
        assert {(0, pair.lead.job_id), (0, pair.companion.job_id)} <= passage.held
        assert passage.breaches() == []
    finally:
        world.database = database
        await meeting.close()


async def _is_placed(pair: Pair) -> None:
    versions = await pair.lead.versions(pair.lead.job_id)
    start = Start(pair.lead.job_id, pair.world.cloud.on_offer[0], "now", versions)
    assert await pair.enact(start) == ()


async def test_who_is_left_is_locked_alone(meeting: Meeting, pair: Pair) -> None:
    """A merge that is over ties nobody: a job, its run, and its machine."""
    await pair.says(pair.lead, "exited", 9, exit_code=0)
    *_, passage = await meeting.watch(_companion_finishes)
    assert passage.held == {(0, pair.companion.job_id), (1, pair.companion.source), (2, pair.node_id)}
