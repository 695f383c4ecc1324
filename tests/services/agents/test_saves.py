"""What a run says of itself: that it saves when it is asked to. Plans may move its job from then on."""

from __future__ import annotations

from app.core.lifecycle import Outcome
from app.core.model.job import JobState
from app.core.model.run import RunEnd
from app.core.model.snapshot import JobView
from app.db.decisions.snapshots import read_snapshot
from app.db.tables import jobs
from app.services.runs.end_run import end_run
from tests.services.agents.conftest import Place, Stage


async def seen(stage: Stage, place: Place) -> JobView:
    async with stage.database.transaction() as connection:
        snapshot = await read_snapshot(connection, stage.clock.ms, (), 1)
    (job,) = (one for one in snapshot.jobs if one.job_id == place.job_id)
    return job


async def test_a_run_of_which_nothing_is_known_keeps_its_job_where_it_is(stage: Stage) -> None:
    """As every run of an agent of an older release does: its first checkpoint ends that."""
    place = await stage.running()
    await stage.sync(place, place.report("running", step=7))
    assert (await seen(stage, place)).stays
    await stage.save(place, 7, ("model", b"weights"))
    found = await seen(stage, place)
    assert (found.stays, found.saves) == (False, False)


async def test_a_run_that_says_that_it_saves_lets_its_job_move(stage: Stage) -> None:
    """Whenever it says so: with its first step, or later and without one."""
    place = await stage.running()
    await stage.sync(place, place.report("running", saves=True))
    assert not (await seen(stage, place)).stays
    first_ms = (await stage.row(jobs, place.job_id)).saves_ms
    stage.clock.ms += 5_000
    await stage.sync(place, place.report("running", step=3, saves=True))
    assert (await stage.row(jobs, place.job_id)).saves_ms == first_ms


async def test_the_word_of_a_run_that_is_over_counts_for_nothing(stage: Stage) -> None:
    """Its epoch is gone."""
    place = await stage.running()
    lost = Outcome(RunEnd.NODE_LOST, JobState.WAITING, None, True, "its agent is silent")
    async with stage.database.transaction() as connection:
        await end_run(connection, stage.ids, place.run_id, lost, now_ms=stage.clock.ms)
    await stage.sync(place, place.report("running", step=3, saves=True))
    assert (await stage.row(jobs, place.job_id)).saves_ms is None
