"""Two jobs that are merged are locked together, and in the order that everybody shares: what ends one of them never
waits for what ends the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy.exc import DBAPIError

from app.db import lock_order
from app.db.jobs.steering import lock_standing
from app.db.locked_together import merged_with
from tests.control.lock_watch import Meeting
from tests.control.merging import Merging
from tests.control.world import World


@pytest.fixture(params=["lead first", "companion first"])
async def merging(world: World, tmp_path: Path, request: pytest.FixtureRequest) -> Merging:
    """The lead trains; of the two, the lead or the companion has the lower id."""
    merging = Merging(world, tmp_path)
    jobs = [merging.lead, merging.companion]
    for job in jobs if request.param == "lead first" else reversed(jobs):
        job.job_id = await world.submit()
    assert await merging.merge() == ()
    await merging.train(merging.lead)
    await merging.lead.saves(merging.lead.source, 10)
    merging.opened, _ = await merging.lead.opens(merging.lead.source, 20)
    return merging


async def _lead_ends(merging: Merging) -> None:
    await merging.lead.says(merging.lead.source, "exited", exit_code=0)


async def _lead_is_cancelled(merging: Merging) -> None:
    await merging.lead.cancel()


async def _companion_is_cancelled(merging: Merging) -> None:
    await merging.companion.cancel()


async def _companion_is_paused(merging: Merging) -> None:
    await merging.companion.pause()


async def _machine_is_lost(merging: Merging) -> None:
    await merging.lead.loses(merging.lead.source_node)


async def _they_are_split(merging: Merging) -> None:
    await merging.split()


async def _lead_commits_its_final_checkpoint(merging: Merging) -> None:
    await merging.lead.commits(merging.lead.source, merging.opened, final=True)


PAIRS = (
    (_lead_ends, _companion_is_cancelled),
    (_companion_is_cancelled, _lead_ends),
    (_companion_is_paused, _machine_is_lost),
    (_lead_is_cancelled, _they_are_split),
)
ACTS = (_lead_is_cancelled, _they_are_split, *(act for act, _ in PAIRS[:3]), _machine_is_lost)


@pytest.fixture
async def meeting(
    merging: Merging, database_url: str, observer: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Meeting]:
    async def beats(_node_id: str) -> None:
        return

    monkeypatch.setattr(merging.world, "beat", beats)  # a transaction of its own, on one row
    meeting, database = Meeting(merging, database_url, observer), merging.world.database
    yield meeting
    merging.world.database = database
    await meeting.close()


async def test_both_jobs_are_locked_in_the_order(meeting: Meeting, merging: Merging) -> None:
    """Whichever of them is meant, and before anything that one of them reaches."""
    both = {(0, merging.lead.job_id), (0, merging.companion.job_id)}
    for act in ACTS:
        *_, passage = await meeting.watch(act)
        assert both <= passage.held, act.__name__
        assert passage.breaches() == [], act.__name__
    for passage in await meeting.watch(_lead_commits_its_final_checkpoint):
        assert passage.breaches() == []


async def test_what_ends_both_never_waits_for_each_other(meeting: Meeting) -> None:
    """Wherever one transaction is when the other begins."""
    for act, other in PAIRS:
        *_, passage = await meeting.watch(act)
        for statement, _rows in passage.taken:
            await meeting.meet(act, other, after=statement)


async def test_a_merge_that_comes_while_a_job_is_being_locked_is_seen(
    merging: Merging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is given back, and both are taken in the order."""
    asked = 0

    async def late(connection: object, job_ids: object) -> set[str]:
        nonlocal asked
        asked += 1
        return set() if asked == 1 else await merged_with(connection, job_ids)  # type: ignore[arg-type] # as it was given

    monkeypatch.setattr(lock_order, "LOCKED_TOGETHER", (late,))
    async with merging.world.database.transaction() as connection:
        await lock_standing(connection, merging.companion.job_id)
        held = await _held(merging)
    assert asked == 3
    assert held == {merging.lead.job_id, merging.companion.job_id}


async def test_without_the_partner_they_would(
    meeting: Meeting, merging: Merging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests above can fail: with each job locked by itself, the other one's events are written unguarded, and two
    ends wait for each other."""

    async def nobody(*_of: object) -> set[str]:
        return set()

    monkeypatch.setattr(lock_order, "LOCKED_TOGETHER", (nobody,))
    found = []
    for act, other in PAIRS[:2]:
        *_, passage = await meeting.watch(act)
        found += passage.breaches()
        try:
            for statement, _rows in passage.taken:
                await meeting.meet(act, other, after=statement)
        except DBAPIError as error:
            found.append(str(error))
    assert found


async def _held(merging: Merging) -> set[str]:
    ids = {merging.lead.job_id, merging.companion.job_id}
    url = merging.world.settings.database_url.get_secret_value()
    connection = await asyncpg.connect(url)
    try:
        free = await connection.fetch("SELECT id FROM jobs FOR NO KEY UPDATE SKIP LOCKED")
    finally:
        await connection.close()
    return ids - {row["id"] for row in free}
