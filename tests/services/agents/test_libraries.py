"""The versions that a fine-tuning began with are what all its machines are asked to have."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from allpass.recipe.packing import SCRIPT_NAME
from app.core.lifecycle import Outcome
from app.core.model.job import JobState
from app.core.model.run import RunEnd, RunState
from app.db.tables import app_versions, jobs, runs
from app.services.runs.end_run import end_run
from tests.services.agents.conftest import Place, Stage

FIRST = {"torch": "2.6.0+cu124", "transformers": "4.57.1", "tokenizers": "0.22.0", "numpy": "2.0.0"}
OTHER = {"torch": "2.8.0", "transformers": "5.0.0"}
PINS = ["tokenizers==0.22.0", "torch==2.6.0", "transformers==4.57.1"]


async def begun(stage: Stage, *, entrypoint: str = SCRIPT_NAME) -> Place:
    place = await stage.place()
    async with stage.database.transaction() as connection:
        pip = ["torch>=2.4", "transformers>=4.56"]
        await connection.execute(update(app_versions).values(entrypoint=entrypoint, pip=pip))
    await stage.sync(place, place.report("running"))
    return place


async def lost(stage: Stage, place: Place) -> Place:
    """Its machine is gone; the job has a new run."""
    outcome = Outcome(RunEnd.NODE_LOST, JobState.WAITING, None, True, "its agent is silent")
    async with stage.database.transaction() as connection:
        await end_run(connection, stage.ids, place.run_id, outcome, now_ms=stage.clock.ms)
    return await stage.next_run(place)


async def known(stage: Stage, place: Place) -> object:
    return (await stage.row(jobs, place.job_id)).libraries


async def pins_of(stage: Stage, place: Place) -> list[str]:
    (run,) = (await stage.sync(place)).json()["runs"]
    found: list[str] = run["spec"]["pins"]
    return found


async def test_the_next_machine_is_asked_for_what_the_first_one_had(stage: Stage) -> None:
    """And told nothing on the first. What a later machine had instead is not what the job began with."""
    place = await begun(stage)
    assert await pins_of(stage, place) == []
    await stage.sync(place, place.report("running", step=1, libraries=FIRST))
    assert await known(stage, place) == FIRST
    await stage.save(place, 5, ("model", b"weights"))
    for libraries in (OTHER, FIRST):
        place = await lost(stage, place)
        assert await pins_of(stage, place) == PINS
        await stage.sync(place, place.report("running", step=5, libraries=libraries))
        await stage.sync(place, place.report("running", step=6, libraries=libraries))
        assert await known(stage, place) == FIRST
        assert await pins_of(stage, place) == PINS


async def test_a_machine_that_stands_by_is_asked_as_well(stage: Stage) -> None:
    """Before there is any checkpoint: it will go on with the one that the move makes."""
    place = await begun(stage)
    await stage.sync(place, place.report("running", step=1, libraries=FIRST))
    target = await stage.next_run(place)
    async with stage.database.transaction() as connection:
        await connection.execute(update(runs).where(runs.c.id == target.run_id).values(state=RunState.STANDBY))
        await connection.execute(update(jobs).where(jobs.c.id == place.job_id).values(epoch=place.epoch))
    told = {run["run_id"]: run["spec"]["pins"] for run in (await stage.sync(place)).json()["runs"]}
    assert told == {place.run_id: [], target.run_id: PINS}


async def test_what_begins_anew_is_held_to_nothing(stage: Stage) -> None:
    """No state of the first machine is left: the second one's versions are the job's."""
    place = await begun(stage)
    await stage.sync(place, place.report("running", step=1, libraries=FIRST))
    place = await lost(stage, place)
    assert await pins_of(stage, place) == []
    await stage.sync(place, place.report("running", libraries=OTHER))
    assert await known(stage, place) == OTHER


async def test_a_job_from_before_is_held_to_what_it_is_seen_with_first(stage: Stage) -> None:
    """Its first machines told nothing."""
    place = await begun(stage)
    await stage.save(place, 5, ("model", b"weights"))
    place = await lost(stage, place)
    assert await pins_of(stage, place) == []
    await stage.sync(place, place.report("running", step=5, libraries=OTHER))
    place = await lost(stage, place)
    assert await pins_of(stage, place) == ["torch==2.8.0", "transformers==5.0.0"]


async def test_a_script_of_one_s_own_chooses_for_itself(stage: Stage) -> None:
    """Whatever it tells."""
    place = await begun(stage, entrypoint="train.py")
    await stage.sync(place, place.report("running", step=1, libraries=FIRST))
    await stage.save(place, 5, ("model", b"weights"))
    assert await pins_of(stage, await lost(stage, place)) == []


async def test_a_run_that_is_over_has_none_to_tell(stage: Stage) -> None:
    old = await begun(stage)
    await lost(stage, old)
    await stage.sync(old, old.report("running", step=3, libraries=FIRST))
    assert await known(stage, old) is None


async def test_code_that_is_over_at_once_has_told_all_the_same(stage: Stage) -> None:
    place = await begun(stage)
    await stage.sync(place, place.report("exited", step=3, libraries=FIRST, exit={"exit_code": 0}))
    assert await known(stage, place) == FIRST


@pytest.mark.parametrize(
    "told", [["torch"], "torch", {"torch": 2}, {"torch": "2 ; rm -rf /"}, {"torch": "2.6\x00"}, {"--index-url": "x"}]
)
async def test_what_cannot_be_a_version_is_never_installed(stage: Stage, told: Any) -> None:
    """The code of a job, or another release, may write anything; its machines get none of it."""
    place = await begun(stage)
    await stage.sync(place, place.report("running", step=1, libraries=told))
    await stage.save(place, 5, ("model", b"weights"))
    assert await pins_of(stage, await lost(stage, place)) == []
    if told != {"torch": "2.6\x00"}:  # which no row can hold
        async with stage.database.transaction() as connection:
            await connection.execute(update(jobs).values(libraries=told))
        assert (await stage.sync(place)).status_code == 200
