"""What is drawn of jobs: who saves, and which model they fetch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from app.simulator.options import Options
from app.simulator.scenario import Task
from app.simulator.worlds.habits import with_habits
from app.simulator.worlds.known import FRIENDLY, HARSH, MEASURED
from app.simulator.worlds.world import World
from tests.simulator.scenarios import task
from tests.simulator.small import small_trace

MANY = tuple(task(f"job-{n}", 600) for n in range(4_000))


def never(tasks: tuple[Task, ...]) -> set[str]:
    return {one.job_id for one in tasks if not one.saves and one.own_saves_ms is None}


def own(tasks: tuple[Task, ...]) -> set[str]:
    return {one.job_id for one in tasks if one.own_saves_ms is not None}


@pytest.mark.parametrize("figures", [MEASURED, HARSH])
def test_as_many_as_the_world_says(figures: World) -> None:
    """Within two points, of four thousand jobs."""
    drawn = with_habits(MANY, figures, 1)
    assert len(never(drawn)) / len(drawn) == pytest.approx(figures.never_saves_share, abs=0.02)
    assert len(own(drawn)) / len(drawn) == pytest.approx(figures.own_saves_share, abs=0.02)
    unsaved = [one for one in drawn if one.job_id in never(drawn)]
    assert sum(one.known for one in unsaved) / len(unsaved) == pytest.approx(figures.known_share, abs=0.05)
    assert {one.own_saves_ms for one in drawn if one.job_id in own(drawn)} == {figures.own_saves_every_s * 1000}
    shares = Counter(one.model for one in drawn)
    assert [shares[n] / len(drawn) for n in range(3)] == pytest.approx([0.5, 0.3, 0.2], abs=0.03)


def test_who_never_saves_in_one_world_does_not_in_a_rougher_one() -> None:
    """With the same seed; with another one it is somebody else."""
    assert never(with_habits(MANY, MEASURED, 1)) < never(with_habits(MANY, HARSH, 1))
    assert never(with_habits(MANY, MEASURED, 1)) != never(with_habits(MANY, MEASURED, 2))
    assert with_habits(MANY, FRIENDLY, 1) == MANY


def test_nobody_trains_for_a_day_without_a_save() -> None:
    """Who would never save, and runs for longer than four hours, saves by itself."""
    least = 14_400
    brief, long = (
        with_habits(tuple(task(f"job-{n}", work_s) for n in range(500)), HARSH, 1) for work_s in (least, least + 1)
    )
    assert never(brief)
    assert not never(long)
    assert own(long) == own(brief) | never(brief)


@pytest.mark.parametrize("models", [1, 2, 3, 7])
def test_every_model_is_somebody_s(models: int) -> None:
    drawn = with_habits(MANY, replace(FRIENDLY, models=models), 0)
    assert {one.model for one in drawn} == set(range(models))


def test_what_a_trace_says_holds_and_jobs_that_may_merge_save() -> None:
    """A row that says `saves: no` is not made one that saves, and the built-in recipe saves when it is asked to."""
    silent = tuple(replace(one, saves=False) for one in MANY[:50])
    assert {(one.saves, one.own_saves_ms) for one in with_habits(silent, HARSH, 0)} == {(False, None)}
    options = Options().having("world", "harsh").having("merge-able", "1")
    assert all(one.saves for one in options.tasks(small_trace(), 0))
    assert not all(one.saves for one in Options().having("world", "harsh").tasks(small_trace(), 0))
