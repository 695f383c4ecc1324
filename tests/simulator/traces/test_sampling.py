"""Samples: which jobs are taken, and how they are scaled."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidInput
from app.simulator.traces.generating import generate
from app.simulator.traces.job import Trace, TraceJob
from app.simulator.traces.reading import read_trace, write_trace
from app.simulator.traces.sampling import RECIPES, SampleScaling, sample

PAPER = RECIPES["section-5.1"]
LARGE = generate("philly", 2000, 1)


def test_the_recipe_of_the_paper() -> None:
    """200 jobs in a row, durations a fifth, gaps a fifteenth, the first at 0."""
    taken = sample(LARGE, PAPER)
    first_s = LARGE.jobs[0].submit_s
    assert len(taken.jobs) == 200
    for job, source in zip(taken.jobs, LARGE.jobs, strict=False):
        assert (job.job_id, job.gpus, job.job_type) == (source.job_id, source.gpus, source.job_type)
        assert job.duration_s == pytest.approx(source.duration_s / 5, abs=1e-3)
        assert job.submit_s == pytest.approx((source.submit_s - first_s) / 15, abs=1e-3)
    assert taken.jobs[0].submit_s == 0


def test_a_sample_from_an_instant_on() -> None:
    """It begins with the first job that is submitted then or later."""
    middle_s = LARGE.jobs[700].submit_s
    assert sample(LARGE, PAPER, start_s=middle_s).jobs[0].job_id == LARGE.jobs[700].job_id


def test_random_samples() -> None:
    """From the whole trace, in its order; the seed decides which."""
    one, same, other = (sample(LARGE, PAPER, mode="random", seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert {job.job_id for job in one.jobs} != {job.job_id for job in other.jobs}
    order = {job.job_id: place for place, job in enumerate(LARGE.jobs)}
    places = [order[job.job_id] for job in one.jobs]
    assert places == sorted(places)
    assert places[0] < 200
    assert places[-1] > 1800


def test_jobs_of_no_time_are_not_taken() -> None:
    """They would be no work; deadlines shrink as durations do."""
    jobs = [TraceJob("a", 0, 0, 1), TraceJob("b", 15, 50, 4, deadline_s=100), TraceJob("c", 45, 5, 1)]
    taken = sample(Trace.of("t", jobs), SampleScaling(2, 5, 15))
    assert taken.jobs == (TraceJob("b", 0, 10, 4, deadline_s=20), TraceJob("c", 2, 1, 1))


@given(
    jobs=st.integers(1, 50),
    durations_by=st.floats(0.01, 100),
    gaps_by=st.floats(0.01, 100),
    seed=st.integers(0, 2**32),
)
def test_samples_keep_proportions(jobs: int, durations_by: float, gaps_by: float, seed: int) -> None:
    """Whatever the recipe: so many jobs, all of the trace, and only times are changed, by its factors."""
    taken = sample(LARGE, SampleScaling(jobs, durations_by, gaps_by), mode="random", seed=seed)
    sources = {job.job_id: job for job in LARGE.jobs}
    assert len({job.job_id for job in taken.jobs}) == jobs
    first_s = min(sources[job.job_id].submit_s for job in taken.jobs)
    for job in taken.jobs:
        source = sources[job.job_id]
        assert job.duration_s == pytest.approx(source.duration_s / durations_by, abs=1e-3)
        assert job.submit_s == pytest.approx((source.submit_s - first_s) / gaps_by, abs=1e-3)


def test_a_sample_is_a_trace(tmp_path: Path) -> None:
    """It can be written and read back."""
    taken = sample(LARGE, PAPER)
    write_trace(taken, tmp_path / "sample.csv")
    assert read_trace(tmp_path / "sample.csv").jobs == taken.jobs


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        (SampleScaling(0, 5, 15), "jobs: 0 is below 1"),
        (SampleScaling(2001, 5, 15), "jobs: philly-2000-1 has 2000 jobs that run for any time, fewer than 2001"),
        (SampleScaling(10, 0, 15), "durations_by: 0 is not above 0"),
        (SampleScaling(10, 5, -1), "gaps_by: -1 is not above 0"),
        (SampleScaling(10, 5, float("nan")), "gaps_by: nan is not above 0"),
    ],
)
def test_recipes_that_cannot_be_followed(recipe: SampleScaling, told: str) -> None:
    """The field, its value and what to do are named."""
    with pytest.raises(InvalidInput, match=told):
        sample(LARGE, recipe)
