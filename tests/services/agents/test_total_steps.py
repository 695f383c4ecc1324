"""How many steps a job has, as its run tells: kept under its epoch, believed as far as template and step allow."""

from __future__ import annotations

from typing import Any

import pytest

from app.db.decisions.snapshots import read_snapshot
from app.db.tables import jobs
from tests.services.agents.conftest import Place, Stage


async def total(stage: Stage, place: Place) -> int | None:
    found = (await stage.row(jobs, place.job_id)).total_steps
    return None if found is None else int(found)


async def say(stage: Stage, place: Place, step: int, told: Any) -> int | None:
    answer = await stage.sync(place, place.report("running", step=step, total_steps=told))
    assert answer.status_code == 200, answer.text
    return await total(stage, place)


async def test_what_its_code_tells_is_kept_and_follows_it(stage: Stage) -> None:
    """Told late or anew; decisions see it, and no planned action becomes stale by it."""
    place = await stage.running()
    assert await total(stage, place) is None
    before = (await stage.row(jobs, place.job_id)).row_version
    assert await say(stage, place, 0, 250) == 250
    assert await say(stage, place, 10, 400) == 400
    assert await say(stage, place, 11, None) == 400, "an agent of an older release says nothing of it"
    assert (await stage.row(jobs, place.job_id)).row_version == before
    async with stage.database.transaction() as connection:
        snapshot = await read_snapshot(connection, stage.clock.ms, (), 1)
    assert [job.total_steps for job in snapshot.jobs] == [400]


async def test_one_that_is_passed_is_forgotten(stage: Stage) -> None:
    """And not heard again while it is still told; another one is."""
    place = await stage.running()
    assert await say(stage, place, 5, 10) == 10
    assert await say(stage, place, 11, 10) is None
    assert await say(stage, place, 12, 10) is None
    assert await say(stage, place, 12, 20) == 20


async def test_the_templates_word_stands_until_a_step_beyond_it(stage: Stage) -> None:
    """The job was planned and priced by it."""
    place = await stage.running(template={"training": {"steps": 100}}, total_steps=100)
    assert await say(stage, place, 5, 250) == 100
    assert await say(stage, place, 101, 250) == 250
    assert await say(stage, place, 251, 250) == 100


@pytest.mark.parametrize("told", [0, -3, 10**12 + 1, 2**63, 10**30, 2.5, True, "many", [1], {}])
async def test_what_cannot_be_a_number_of_steps_is_left_out(stage: Stage, told: Any) -> None:
    """The report counts all the same."""
    place = await stage.running()
    assert await say(stage, place, 7, told) is None
    assert (await stage.row(jobs, place.job_id)).step == 7


@pytest.mark.parametrize("steps", [4e300, "many", None, -1, [3], 10**40])
async def test_a_template_that_nobody_can_count_with_harms_no_report(stage: Stage, steps: Any) -> None:
    """Rows are read for ever, whatever was let in once."""
    place = await stage.running(template={"training": {"steps": steps}})
    assert await say(stage, place, 7, 50) == 50


async def test_the_last_report_tells_it_too(stage: Stage) -> None:
    """A run that is over before it was heard a second time; one of another epoch is not heard."""
    place = await stage.running()
    done = place.report("exited", step=9, total_steps=9, exit={"exit_code": 0})
    assert (await stage.sync(place, done)).status_code == 200
    assert await total(stage, place) == 9
    again = await stage.running()
    stale = {**again.report("running", step=3, total_steps=50), "epoch": again.epoch + 1}
    await stage.sync(again, stale)
    assert await total(stage, again) is None
