"""Checkpoints that cannot be kept: the job's owner hears of it at once, and no step is lost without a word."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from app.core.lifecycle import Outcome
from app.core.model.job import JobState, PauseReason
from app.core.model.run import RunEnd
from app.core.model.transfer import Transfer
from app.db.checkpoints.transfers import HEARD_MS, transfer_of
from app.db.decisions.snapshots import read_snapshot
from app.db.engine import Database
from app.db.jobs.steering import lock_standing
from app.db.tables import job_events, jobs, runs, transfers
from app.errors import Conflict
from app.services.jobs.hold_job import hold_job
from app.services.jobs.pause_job import pause_job
from app.services.runs.end_run import end_run
from tests.services.agents.conftest import Place, Stage

WHY = "it has 12,000 files, and at most 10,000 can be stored: pack them"
LEFT = Outcome(RunEnd.DEMOTED, JobState.WAITING, None, False, "left without a new checkpoint when asked to stop")
LOST = Outcome(RunEnd.NODE_LOST, JobState.WAITING, None, True, "its agent is silent")


async def refuse(stage: Stage, place: Place, step: int, why: str = WHY, **more: Any) -> Any:
    return await stage.post(place, "/refusals", {**place.writer(), "step": step, "why": why, **more})


async def trained_to(stage: Stage, step: int, saved: int | None = None, *, saves: bool = True) -> Place:
    place = await stage.running()
    if saved is not None:
        await stage.save(place, saved, ("model", b"weights"))
    await stage.sync(place, place.report("running", step=step, saves=saves))
    return place


async def told(stage: Stage, place: Place, kind: str) -> list[str]:
    return [row.message for row in await stage.rows(job_events, job_id=place.job_id, kind=kind)]


async def end(stage: Stage, place: Place, outcome: Outcome) -> None:
    async with stage.database.transaction() as connection:
        assert await end_run(connection, stage.ids, place.run_id, outcome, now_ms=stage.clock.ms)


async def is_unsaved(database: Database, stage: Stage, place: Place) -> bool:
    async with database.transaction() as connection:
        seen = await read_snapshot(connection, stage.clock.ms, (), 1)
    (job,) = (one for one in seen.jobs if one.job_id == place.job_id)
    assert job.stays == job.unsaved
    return job.unsaved


async def test_the_first_refusal_is_an_event_and_holds_the_job_where_it_is(stage: Stage, database: Database) -> None:
    """In the words that the agent was given; the same again is no news, and the next checkpoint ends it."""
    place = await trained_to(stage, 45, saved=40)
    assert not await is_unsaved(database, stage, place)
    assert (await refuse(stage, place, 45)).status_code == 204
    assert (await refuse(stage, place, 50)).status_code == 204
    assert await told(stage, place, "checkpoint_refused") == [
        f"the checkpoint of step 45 cannot be kept: {WHY}. Until one is kept, the job is not moved; "
        "the steps since the checkpoint of step 40 would be lost"
    ]
    assert await is_unsaved(database, stage, place)
    assert (await stage.row(jobs, place.job_id)).refused_why == WHY
    await stage.save(place, 60, ("model", b"more"))
    assert not await is_unsaved(database, stage, place)
    await refuse(stage, place, 70)
    assert len(await told(stage, place, "checkpoint_refused")) == 2


async def test_a_refusal_of_a_run_that_is_over_counts_for_nothing(stage: Stage) -> None:
    """The next run may well be able to save."""
    place = await trained_to(stage, 45)
    await end(stage, place, LOST)
    assert (await refuse(stage, place, 45)).json()["error"]["code"] == "fenced"
    assert await told(stage, place, "checkpoint_refused") == []


async def test_what_is_left_out_of_the_output_is_told_and_is_no_checkpoint(stage: Stage, database: Database) -> None:
    """It has nothing to do with moves."""
    place = await trained_to(stage, 45)
    assert (await refuse(stage, place, 45, "2 files are no regular files", what="output")).status_code == 204
    assert await told(stage, place, "output_refused") == [
        "not all that it leaves behind is kept: 2 files are no regular files"
    ]
    assert not await is_unsaved(database, stage, place)


async def test_a_pause_that_would_lose_steps_says_how_many_and_is_done_on_request(stage: Stage) -> None:
    """The message names the step, the reason and the way out; nothing has changed until then."""
    place = await trained_to(stage, 412, saved=400)
    await refuse(stage, place, 410)
    async with stage.database.transaction() as connection:
        with pytest.raises(Conflict) as asked:
            await pause_job(connection, stage.ids, place.project_id, place.job_id, now_ms=stage.clock.ms)
    assert (asked.value.error_code, asked.value.param) == ("steps_would_be_lost", "lose_steps")
    for part in ("12 steps", "step 412", "the checkpoint of step 400", WHY, "lose_steps: true"):
        assert part in asked.value.message
    assert (await stage.row(jobs, place.job_id)).state == "running"
    async with stage.database.transaction() as connection:
        await pause_job(connection, stage.ids, place.project_id, place.job_id, lose_steps=True, now_ms=stage.clock.ms)
    assert (await stage.row(jobs, place.job_id)).state == "checkpointing"


async def test_a_pause_of_a_job_that_saves_asks_nothing(stage: Stage) -> None:
    """Steps since the last checkpoint are no loss: it saves before it leaves."""
    place = await trained_to(stage, 412, saved=400)
    async with stage.database.transaction() as connection:
        await pause_job(connection, stage.ids, place.project_id, place.job_id, now_ms=stage.clock.ms)
    assert (await stage.row(jobs, place.job_id)).state == "checkpointing"


@pytest.mark.parametrize("refused", [True, False])
async def test_leaving_without_a_checkpoint_is_no_orderly_leave(
    stage: Stage, database: Database, refused: bool
) -> None:
    """The run's end, an event and the job say how many steps are lost, and no plan moves the job again until it has
    saved. It is nobody's fault: the budget is not touched."""
    place = await trained_to(stage, 412, saved=400)
    if refused:
        await refuse(stage, place, 412)
    async with stage.database.transaction() as connection:
        await pause_job(connection, stage.ids, place.project_id, place.job_id, lose_steps=True, now_ms=stage.clock.ms)
    exit_ = {"exit_code": 75, "saved_after_stop": False, "last_lines": ""}
    await stage.sync(place, place.report("exited", step=412, exit=exit_))
    run, job = await stage.row(runs, place.run_id), await stage.row(jobs, place.job_id)
    assert (run.end_reason, job.state, job.faults, job.moves) == ("unsaved", "paused", 0, 0)
    (lost,) = await told(stage, place, "steps_lost")
    assert lost.startswith("12 steps since the checkpoint of step 400 are lost")
    assert (WHY in lost) is refused
    assert "12 steps since the checkpoint of step 400 are lost" in run.end_message
    assert job.refused_why == (WHY if refused else "it left without one when it was asked to save")


async def test_a_job_that_never_saved_is_told_that_all_is_lost(stage: Stage) -> None:
    """It began again at step 0 without a word before."""
    place = await trained_to(stage, 34)
    await end(stage, place, LEFT)
    assert await told(stage, place, "steps_lost") == ["34 steps since it began are lost"]
    assert (await stage.row(runs, place.run_id)).end_reason == "unsaved"


async def test_steps_that_a_lost_machine_costs_are_told_too(stage: Stage, database: Database) -> None:
    """The end is what it was; a script that saves is moved as before."""
    place = await trained_to(stage, 412, saved=400)
    await end(stage, place, LOST)
    assert await told(stage, place, "steps_lost") == ["12 steps since the checkpoint of step 400 are lost"]
    assert (await stage.row(runs, place.run_id)).end_reason == "node_lost"
    assert not await is_unsaved(database, stage, place)


async def test_leaving_at_the_step_of_the_last_checkpoint_loses_nothing(stage: Stage) -> None:
    """There was nothing new to save."""
    place = await trained_to(stage, 400, saved=400)
    await end(stage, place, LEFT)
    assert await told(stage, place, "steps_lost") == []
    assert (await stage.row(runs, place.run_id)).end_reason == "demoted"


async def test_a_job_that_begins_with_anothers_checkpoint_loses_what_it_added(stage: Stage) -> None:
    """Steps that the other job took are in that one's checkpoint."""
    other = await trained_to(stage, 100, saved=100)
    checkpoint_id = (await stage.row(jobs, other.job_id)).checkpoint_id
    place = await stage.running(from_checkpoint_id=checkpoint_id)
    await stage.sync(place, place.report("running", step=103))
    await end(stage, place, LEFT)
    assert await told(stage, place, "steps_lost") == ["3 steps since it began are lost"]


async def test_a_cap_that_cannot_ask_tells_what_will_be_lost(stage: Stage) -> None:
    """When the job is asked to leave, and not only afterwards."""
    place = await trained_to(stage, 412, saved=400)
    await refuse(stage, place, 410)
    async with stage.database.transaction() as connection:
        job = await lock_standing(connection, place.job_id)
        assert job is not None
        await hold_job(connection, stage.ids, job, PauseReason.COST_CAP, now_ms=stage.clock.ms)
    (asked,) = await told(stage, place, "run_stopping")
    assert asked.endswith(f"not kept ({WHY}): 12 steps since the checkpoint of step 400 will be lost")


async def test_a_profile_run_loses_nothing(stage: Stage) -> None:
    """It takes its job no further."""
    place = await trained_to(stage, 5)
    async with stage.database.transaction() as connection:
        await connection.execute(update(runs).where(runs.c.id == place.run_id).values(purpose="profile"))
    await end(stage, place, LOST)
    assert await told(stage, place, "steps_lost") == []


async def test_how_far_a_transfer_is_is_told_with_its_rate(stage: Stage) -> None:
    """From when it was first heard of; one that stands still, or is over, is told no more."""
    place = await trained_to(stage, 412)
    report = {**place.writer(), "kind": "send", "total_bytes": 100_000}
    assert (await stage.post(place, "/transfers", {**report, "done_bytes": 10_000})).status_code == 204
    stage.clock.advance(s=10)
    assert (await stage.post(place, "/transfers", {**report, "done_bytes": 40_000})).status_code == 204
    stage.clock.advance(s=5)

    async def told() -> Transfer | None:
        async with stage.database.transaction() as connection:
            return await transfer_of(connection, place.job_id, heard_after_ms=stage.clock.ms - HEARD_MS)

    found = await told()
    assert found is not None
    assert (found.bytes_per_s(), found.left_ms(stage.clock.ms)) == (3_000, 15_000)
    too_much = await stage.post(place, "/transfers", {**report, "done_bytes": 100_001})
    assert (too_much.status_code, too_much.json()["error"]["param"]) == (422, "done_bytes")
    stage.clock.advance(s=61)
    assert await told() is None


async def test_a_transfer_of_a_kind_that_only_a_newer_release_knows_is_told_by_nobody(stage: Stage) -> None:
    """Whoever asks for its job gets an answer all the same."""
    place = await trained_to(stage, 412)
    report = {**place.writer(), "kind": "send", "done_bytes": 1, "total_bytes": 2}
    assert (await stage.post(place, "/transfers", report)).status_code == 204
    async with stage.database.transaction() as connection:
        assert await transfer_of(connection, place.job_id, heard_after_ms=0) is not None
        await connection.execute(update(transfers).values(kind="of a newer release"))
        assert await transfer_of(connection, place.job_id, heard_after_ms=0) is None


async def test_a_tracker_that_takes_nothing_is_told_once_and_holds_no_job(stage: Stage, database: Database) -> None:
    """However many machines say so."""
    place = await trained_to(stage, 45)
    for why in ("W&B: AuthenticationError: the key is refused", "W&B: CommError"):
        assert (await refuse(stage, place, 45, why, what="tracking")).status_code == 204
    assert await told(stage, place, "tracking_refused") == [
        "its metrics do not reach their tracker: W&B: AuthenticationError: the key is refused. "
        "The training goes on, and Allpass has them all"
    ]
    assert not await is_unsaved(database, stage, place)
