"""The links that a run's code tells of are its job's."""

from __future__ import annotations

from app.core.lifecycle import Outcome
from app.core.model.job import JobState
from app.core.model.run import RunEnd
from app.db.tables import jobs
from app.services.runs.end_run import end_run
from tests.services.agents.conftest import Place, Stage

FIRST, SECOND = {"wandb": "https://wandb.ai/runs/1"}, {"mlflow": "http://mlflow/#/runs/2"}


async def links(stage: Stage, place: Place) -> object:
    return (await stage.row(jobs, place.job_id)).links


async def test_they_are_told_with_the_first_step_or_later(stage: Stage) -> None:
    """An agent of an older release tells none, which takes nothing away."""
    place = await stage.running()
    await stage.sync(place, place.report("running", links=FIRST))
    assert await links(stage, place) == FIRST
    await stage.sync(place, place.report("running", step=1))
    assert await links(stage, place) == FIRST
    await stage.sync(place, place.report("running", step=1, links=SECOND))
    assert await links(stage, place) == SECOND


async def test_a_run_that_is_over_has_none_to_tell(stage: Stage) -> None:
    place = await stage.running()
    lost = Outcome(RunEnd.NODE_LOST, JobState.WAITING, None, True, "its agent is silent")
    async with stage.database.transaction() as connection:
        await end_run(connection, stage.ids, place.run_id, lost, now_ms=stage.clock.ms)
    await stage.sync(place, place.report("running", step=3, links=FIRST))
    assert await links(stage, place) is None


async def test_code_that_is_over_at_once_has_told_all_the_same(stage: Stage) -> None:
    place = await stage.running()
    await stage.sync(place, place.report("exited", step=3, links=FIRST, exit={"exit_code": 0}))
    assert await links(stage, place) == FIRST
