"""Two jobs that are trained in turn: whatever becomes of one of them, the other one knows, and goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from allpass.wire.jobs import Job
from app.api.jobs import find_job, read_job
from app.core.explaining import JobExplanation
from app.core.merging.transfer import IN_TURN, TOGETHER
from app.core.model.merge import MergeMode
from app.core.model.plan import Start
from app.core.model.snapshot import Snapshot
from app.db import tables as t
from app.db.decisions.changed_rows import Looked, has_news, look
from app.db.decisions.snapshots import freeze, read_snapshot
from app.db.merging.merges import gain_lines
from app.db.tables import merges
from app.errors import Fenced
from app.services.reading.explain_job import explain_job
from tests.control.merging import Merging
from tests.control.world import World


@pytest.fixture
def merging(world: World, tmp_path: Path) -> Merging:
    return Merging(world, tmp_path)


async def test_the_companion_waits_for_its_turn_and_begins_where_the_lead_ended(merging: Merging) -> None:
    """No decision places it meanwhile; the lead's last checkpoint is what it begins from."""
    world = merging.world
    await merging.begin()
    await world.decide()
    assert (await world.job(merging.companion.job_id)).state == "queued"
    await merging.finish_lead(step=40)
    row, lead = await merging.row(), await world.job(merging.lead.job_id)
    assert (row.state, row.checkpoint_id) == ("ended", lead.checkpoint_id)
    assert lead.checkpoint_step == 40
    (told,) = await merging.said(merging.companion, "turn_has_come")
    assert told == f"its turn has come: {lead.id} has succeeded, and it begins from what that has learned"
    await merging.train(merging.companion)
    assert (await world.job(merging.companion.job_id)).state == "running"
    because = [line.text for line in (await explained(world, merging.companion.job_id)).because]
    assert f"begins from what {lead.id} has learned" in because
    await world.check_invariants()


async def test_both_jobs_are_told_that_they_are_merged(merging: Merging) -> None:
    """Each in its own events, with the partner, the mode and what is expected."""
    await merging.begin(trains=False)
    world = merging.world
    events = {row.job_id: row for row in await world.rows(t.job_events) if row.kind == "merged"}
    assert events[merging.lead.job_id].data["partner_id"] == merging.companion.job_id
    assert events[merging.companion.job_id].data["partner_id"] == merging.lead.job_id
    assert {row.message for row in events.values()} == {"they help each other"}
    assert events[merging.lead.job_id].data["leads"] is True
    facts = events[merging.companion.job_id].data
    assert (facts["gain"], facts["mode"], facts["leads"]) == (0.3, "in-turn", False)


async def _lead_fails(merging: Merging) -> None:
    assert await merging.lead.says(merging.lead.source, "exited", exit_code=1)


async def _lead_ends_without_a_checkpoint(merging: Merging) -> None:
    assert await merging.lead.says(merging.lead.source, "exited", exit_code=0)


async def _lead_is_cancelled(merging: Merging) -> None:
    await merging.lead.cancel()


async def _lead_is_paused(merging: Merging) -> None:
    await merging.lead.pause()
    await merging.lead.says(merging.lead.source, "exited", exit_code=75, saved_after_stop=True)


async def _companion_is_cancelled(merging: Merging) -> None:
    await merging.companion.cancel()


async def _companion_is_paused(merging: Merging) -> None:
    await merging.companion.pause()


Ends = Callable[[Merging], Awaitable[None]]
BY_ITSELF = "starts by itself: {lead} "
ALONE = "goes on alone: {companion} "


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        (_lead_fails, BY_ITSELF + "has failed"),
        (_lead_ends_without_a_checkpoint, BY_ITSELF + "has succeeded without a checkpoint"),
        (_lead_is_cancelled, BY_ITSELF + "was cancelled"),
        (_lead_is_paused, BY_ITSELF + "is paused"),
        (_companion_is_cancelled, ALONE + "was cancelled"),
        (_companion_is_paused, ALONE + "is paused"),
    ],
    ids=["lead fails", "no checkpoint", "lead cancelled", "lead paused", "companion cancelled", "companion paused"],
)
async def test_the_other_one_goes_on_by_itself(merging: Merging, ends: Ends, words: str) -> None:
    """The merge is void, the other job is told why in words, and nothing holds it back."""
    await merging.begin()
    world, told_job = merging.world, merging.companion if words.startswith("starts") else merging.lead
    await ends(merging)
    assert (await merging.row()).state == "void"
    (told,) = await merging.said(told_job, "merge_ended")
    assert told == words.format(lead=merging.lead.job_id, companion=merging.companion.job_id)
    if told_job is merging.companion:
        await merging.train(merging.companion)
    assert (await world.job(told_job.job_id)).state == "running"
    await world.check_invariants()


async def test_a_lead_whose_machine_is_lost_keeps_its_companion(merging: Merging) -> None:
    """It goes on elsewhere, still merged; the companion waits on and has its turn in the end."""
    world = merging.world
    await merging.begin()
    await merging.lead.saves(merging.lead.source, 20)
    await merging.lead.loses(merging.lead.source_node)
    assert (await merging.row()).state == "open"
    await merging.train(merging.lead)
    assert (await world.job(merging.companion.job_id)).state == "queued"
    await merging.finish_lead()
    assert (await merging.row()).state == "ended"
    await world.check_invariants()


async def test_a_split_lets_both_go_on_and_they_are_not_merged_again(merging: Merging) -> None:
    """The lead trains on where it is; a decision sees whom each was split from."""
    world = merging.world
    await merging.begin()
    assert await merging.split() == ()
    assert (await merging.row()).state == "split"
    for job in (merging.lead, merging.companion):
        assert await merging.said(job, "merge_split") == ["two epochs without better validation"]
    assert (await world.job(merging.lead.job_id)).state == "running"
    await merging.train(merging.companion)
    await world.check_invariants()


@pytest.mark.parametrize("mode", MergeMode)
async def test_what_is_merged_is_not_merged_again(merging: Merging, mode: MergeMode) -> None:
    """In either place: a job is in one open merge at most."""
    world = merging.world
    await merging.begin(trains=False)
    lead_id, companion_id = merging.lead.job_id, merging.companion.job_id
    for pair in ((lead_id, None), (None, lead_id), (companion_id, None), (None, companion_id)):
        other = Merging(world, merging.lead.objects.root)
        for job, job_id in zip((other.lead, other.companion), pair, strict=True):
            job.job_id = job_id or await world.submit()
        (dropped,) = await other.merge(mode)
        assert "is merged already" in dropped.why
    assert len(await world.rows(merges)) == 1


async def test_a_companion_is_given_no_place_of_its_own(merging: Merging) -> None:
    """Whatever a decision says that was made before: its row versions may still be right."""
    world = merging.world
    await merging.begin(trains=False)
    job_id = merging.companion.job_id
    versions = await merging.companion.versions(job_id)
    (dropped,) = await merging.lead.enact(Start(job_id, world.cloud.on_offer[0], "early", versions))
    assert dropped.why == f"{job_id} is trained with {merging.lead.job_id}, or after it"
    assert (await world.job(job_id)).state == "queued"


async def test_a_stale_merge_or_split_is_dropped(merging: Merging) -> None:
    """Rows that have moved on: nothing is written but the word of it."""
    world = merging.world
    await merging.begin(trains=False)
    row = await merging.row()
    await merging.companion.cancel()
    (dropped,) = await merging.split_of(row.id, row.row_version)
    assert "does not exist" in dropped.why
    other = Merging(world, merging.lead.objects.root)
    other.lead.job_id, other.companion.job_id = await world.submit(), await world.submit()
    stale = await other.proposal()
    await other.companion.pause()
    (dropped,) = await other.lead.enact(stale)
    assert "has moved on" in dropped.why
    (dropped,) = await other.lead.enact(replace(stale, versions=()))
    assert "is over, or is to leave" in dropped.why
    assert len(await world.rows(merges)) == 1


async def test_a_process_that_no_longer_leads_merges_nothing(merging: Merging) -> None:
    """What it decided was for another term: the new leader decides anew."""
    world = merging.world
    merging.lead.job_id, merging.companion.job_id = await world.submit(), await world.submit()
    before, proposal = world.control, await merging.proposal()
    await world.restart()
    world.control, leads = before, world.control
    with pytest.raises(Fenced):
        await merging.lead.enact(proposal)
    world.control = leads
    assert await world.rows(merges) == []
    assert await merging.lead.enact(proposal) == ()


async def test_a_job_with_progress_of_its_own_is_no_companion(merging: Merging) -> None:
    """It would lose what it has done."""
    world = merging.world
    merging.companion.job_id = await world.submit()
    await merging.train(merging.companion)
    await merging.companion.saves(merging.companion.source, 10)
    await merging.companion.loses(merging.companion.source_node)
    merging.lead.job_id = await world.submit()
    (dropped,) = await merging.merge()
    assert dropped.why == f"{merging.companion.job_id} has made progress of its own"


async def test_a_decision_sees_merges_and_is_woken_by_them(merging: Merging) -> None:
    """The open ones, whom a job was split from; either is news."""
    world = merging.world
    await merging.begin(trains=False)

    async def see() -> tuple[Snapshot, Looked]:
        async with world.database.transaction() as connection:
            await freeze(connection)
            snapshot = await read_snapshot(connection, world.clock.now_ms(), (), 60_000, merging=True)
            return snapshot, await look(connection)

    snapshot, before = await see()
    (view,) = snapshot.merges
    assert (view.lead_id, view.companion_id, view.gain) == (merging.lead.job_id, merging.companion.job_id, 0.3)
    await merging.split()
    async with world.database.transaction() as connection:
        assert await has_news(connection, before)
    snapshot, _after = await see()
    assert snapshot.merges == ()


async def test_the_explanation_and_the_job_tell_of_the_merge(merging: Merging) -> None:
    """With whom, which way, what comes next, and afterwards why it was undone."""
    world = merging.world
    await merging.begin()
    lead_id, companion_id = merging.lead.job_id, merging.companion.job_id
    lead, companion = await explained(world, lead_id), await explained(world, companion_id)
    for told in (lead, companion):
        assert "they help each other" in [line.text for line in told.because]
    assert f"when it ends, {companion_id} goes on in its place" in " ".join(line.text for line in lead.next)
    assert f"starts when {lead_id} ends" in " ".join(line.text for line in companion.next)
    shown = await show(world, companion_id)
    assert shown.merge is not None
    assert (shown.merge.partner_id, shown.merge.leads, shown.merge.state) == (lead_id, False, "open")
    assert (shown.merge.mode, shown.merge.expected_gain, shown.merge.score) == ("in-turn", 0.3, 0.8)
    await merging.split()
    assert "two epochs without better validation" in " ".join(
        line.text for line in (await explained(world, lead_id)).because
    )
    shown = await show(world, lead_id)
    assert shown.merge is not None
    assert (shown.merge.leads, shown.merge.state, shown.merge.end_message) == (
        True,
        "split",
        "two epochs without better validation",
    )
    other = await show(world, await world.submit())
    assert other.merge is None


async def test_a_decision_expects_what_merges_have_been_worth(merging: Merging) -> None:
    """In turn and together apart; the same as if each had been told to the line one by one."""
    world = merging.world
    await merging.begin(trains=False)
    seen = [("in-turn", 0.8, 0.9), ("in-turn", 0.2, -0.1), ("together", 0.5, 0.4)]
    async with world.database.transaction() as connection:
        (row,) = (await connection.execute(merges.select())).all()
        for mode, score, gain in seen:
            again = {"id": world.ids.new("merge"), "state": "ended", "mode": mode, "score": score, "seen_gain": gain}
            await connection.execute(merges.insert().values({**row._mapping, **again}))
        lines = await gain_lines(connection)
    assert lines[0].gain(0.6) == pytest.approx(IN_TURN.learned(0.8, 0.9).learned(0.2, -0.1).gain(0.6))
    assert lines[1].gain(0.6) == pytest.approx(TOGETHER.learned(0.5, 0.4).gain(0.6))


async def explained(world: World, job_id: str) -> JobExplanation:
    now_ms = world.clock.now_ms()
    async with world.database.transaction() as connection:
        row = await find_job(connection, world.project_id, job_id)
        return await explain_job(connection, world.settings, row, now_ms=now_ms)


async def show(world: World, job_id: str) -> Job:
    async with world.database.transaction() as connection:
        return await read_job(connection, world.project_id, job_id, now_ms=world.clock.now_ms())
