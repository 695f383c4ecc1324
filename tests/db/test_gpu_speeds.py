"""What a decision is told of a job's speed on other GPUs, and of which type its times speak."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.core.gpu_speeds import UNKNOWN_SPEEDS, GpuSpeeds
from app.core.model.job import JobState, Resources
from app.core.model.snapshot import JobView
from app.core.progress import ProgressRate
from app.db.decisions.job_views import predicted
from app.db.engine import Database
from app.db.learning.run_history import RunTimes, run_times
from app.db.tables import run_history
from tests.core.samples import NOW_MS, job, run
from tests.seeds import seed_app, seed_project

APP = GpuSpeeds("a100", (("h100", 500),))
USUAL = RunTimes(100_000.0, 1_000.0, None, APP)
STATED = GpuSpeeds("l4", (("a100", 250), ("h100", 100)))


def told(one: JobView, on: str | None = None, *, trains: bool = True, **known: Any) -> JobView:
    live = None
    if on is not None:
        live = run("run_a", "job_a", "node_a", running_since_ms=NOW_MS if trains else None)
    values = {"pace": None, "usual": None, "stated_step_ms": None}
    return predicted(one, live, NOW_MS, on=on, **(values | known))


def test_a_waiting_job_is_told_by_where_most_of_its_app_ran() -> None:
    """A hundred steps of a second on an A100; it may go anywhere."""
    seen = told(job(total_steps=100), usual=USUAL)
    assert (seen.total_run_ms, seen.speeds) == (100_000, APP)


def test_where_it_trains_it_is_told_by_that() -> None:
    """On an H100 it takes half as long, as long as its own steps are not measured; what it would leave is known."""
    seen = told(job(state=JobState.RUNNING, total_steps=100), "H100", usual=USUAL)
    assert (seen.total_run_ms, seen.speeds) == (50_000, GpuSpeeds("h100", (("a100", 2_000),), trains_there=True))
    before = told(job(state=JobState.STARTING, total_steps=100), "H100", trains=False, usual=USUAL)
    assert before.speeds == GpuSpeeds("h100", (("a100", 2_000),))


def test_a_job_that_names_its_type_is_told_by_that_and_has_no_choice() -> None:
    """Its app ran on A100s so far: it takes half as long on the H100 that it asks for."""
    seen = told(job(total_steps=100, resources=Resources(gpu_type="H100")), usual=USUAL)
    assert (seen.total_run_ms, seen.speeds) == (50_000, None)


def test_what_it_states_counts_for_its_speed_and_its_app_for_its_time() -> None:
    """Of a training that is stated more is known of other GPUs than of the app's jobs, which may be others."""
    stated = job(total_steps=100, speeds=STATED)
    assert told(stated, stated_step_ms=4_000.0).total_run_ms == 400_000
    assert told(stated, stated_step_ms=4_000.0).speeds == STATED
    seen = told(stated, usual=USUAL)
    assert seen.total_run_ms == 100_000
    assert seen.speeds == GpuSpeeds("a100", (("h100", 400), ("l4", 4_000)))


def test_its_own_steps_count_most() -> None:
    """Measured where it runs."""
    measured = ProgressRate(0, NOW_MS - 70_000, 10, NOW_MS)
    seen = told(job(state=JobState.RUNNING, total_steps=100), "H100", usual=USUAL, pace=measured)
    assert seen.total_run_ms == 700_000
    no_news = told(job(state=JobState.RUNNING, total_steps=100), "H100", usual=USUAL, pace=ProgressRate(3, 0, 3, 0))
    assert no_news.total_run_ms == 50_000


def test_of_an_unknown_script_its_gpus_are_known() -> None:
    """Where it trains, and whether they wait for each other."""
    assert told(job()).speeds == UNKNOWN_SPEEDS
    several = job(state=JobState.RUNNING, resources=Resources(gpus_min=4))
    assert told(several, "RTX 4090").speeds == GpuSpeeds("rtx4090", trains_there=True, linked=True)


def test_times_of_nobody_knows_which_gpu_are_taken_as_they_are() -> None:
    """A job that was submitted before speeds were kept."""
    assert told(job(total_steps=10), "H100", stated_step_ms=1_000.0).total_run_ms == 10_000


async def test_an_apps_history_is_told_by_type(database: Database) -> None:
    """The type of most of its jobs, those with steps first; others as far as they can be believed."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        app = await seed_app(connection, project_id)
        values = {"app_id": app[0], "updated_ms": 1}
        for gpu_type, samples, run_ms, step_ms in (
            ("A100", 40, 90_000.0, 100.0),
            ("H100", 40, 30_000.0, 60.0),
            ("T4", 99, 5.0, None),
        ):
            row = values | {"gpu_type": gpu_type, "samples": samples, "run_ms": run_ms, "step_ms": step_ms}
            await connection.execute(run_history.insert().values(row))
        found = (await run_times(connection))[app[0]]
    assert (found.run_ms, found.step_ms, found.speeds.gpu_type) == (30_000.0, 60.0, "h100")
    assert dict(found.speeds.times) == {"a100": pytest.approx(1_700, abs=60)}
    assert replace(found.speeds, times=()) == GpuSpeeds("h100")
