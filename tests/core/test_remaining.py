"""What a job has still to run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.columns import JobColumns
from app.core.model.job import JobState
from app.core.model.run import RunState
from app.core.remaining import LEAST_MS, outlived_at_ms, predicted_ms, ran_ms, remaining_ms
from tests.core.samples import NOW_MS, job, run


def running(for_ms: int | None):
    since_ms = None if for_ms is None else NOW_MS - for_ms
    return run("run_a", "job_a", "node_a", RunState.RUNNING, running_since_ms=since_ms)


@pytest.mark.parametrize(
    ("total_ms", "done_ms", "runs_for_ms", "left_ms"),
    [
        (600_000, 0, None, 600_000),  # has not begun
        (600_000, 100_000, None, 500_000),  # begins again, or loads
        (600_000, 100_000, 50_000, 450_000),
        (600_000, 0, 599_500, LEAST_MS),  # nearly done
        (600_000, 0, 700_000, LEAST_MS),  # outlives its prediction by a little
        (600_000, 0, 750_000, LEAST_MS),
        (600_000, 0, 750_001, 750_001),  # by more: nothing is known of it any more
        (600_000, 0, 900_000, 900_000),
        (1, 900_000, None, 900_000),  # also while it waits
        (None, 0, None, LEAST_MS),  # nothing is known
        (None, 0, 300_000, 300_000),  # half of all that live so long live twice as long
        (None, 200_000, 100_000, 300_000),
    ],
)
def test_by_hand(total_ms: int | None, done_ms: int, runs_for_ms: int | None, left_ms: int) -> None:
    """Predicted time less what has run, else as much as has run; at least a second."""
    seen = job(state=JobState.RUNNING, total_run_ms=total_ms, done_ms=done_ms)
    assert remaining_ms(seen, running(runs_for_ms), NOW_MS) == left_ms


def test_without_a_run() -> None:
    """A job that waits has what it had when it left."""
    seen = job(state=JobState.WAITING, total_run_ms=600_000, done_ms=250_000)
    assert ran_ms(seen, None, NOW_MS) == 250_000
    assert remaining_ms(seen, None, NOW_MS) == 350_000


def test_a_run_from_the_future_has_not_run() -> None:
    """A clock that is ahead takes nothing back."""
    assert ran_ms(job(done_ms=7_000), running(-5_000), NOW_MS) == 7_000


@settings(max_examples=60)
@given(st.none() | st.integers(0, 10**9), st.integers(0, 10**8), st.integers(0, 10**8), st.integers(0, 10**6))
def test_time_passes(total_ms: int | None, done_ms: int, for_ms: int, more_ms: int) -> None:
    """What has run grows with the clock; what is left of a known job falls, of an unknown one grows. One that outlives
    its prediction becomes an unknown one."""
    seen = job(total_run_ms=total_ms, done_ms=done_ms)
    early, late = NOW_MS, NOW_MS + more_ms
    assert ran_ms(seen, running(for_ms), late) == ran_ms(seen, running(for_ms), early) + more_ms
    before, after = (remaining_ms(seen, running(for_ms), at_ms) for at_ms in (early, late))
    assert before >= LEAST_MS
    was_known, is_known = (predicted_ms(seen, running(for_ms), at_ms) is not None for at_ms in (early, late))
    assert was_known or not is_known
    assert after <= before if is_known else after >= min(before, LEAST_MS)
    if not is_known:
        assert after == max(LEAST_MS, ran_ms(seen, running(for_ms), late))


@settings(max_examples=60)
@given(st.integers(0, 10**9), st.integers(0, 10**8), st.integers(0, 10**8))
def test_the_moment_at_which_a_prediction_no_longer_counts(total_ms: int, done_ms: int, for_ms: int) -> None:
    """Until it, it does; from it on, it does not."""
    seen = job(total_run_ms=total_ms, done_ms=done_ms)
    at_ms = outlived_at_ms(seen, running(for_ms), NOW_MS)
    assert at_ms is not None
    counts = predicted_ms(seen, running(for_ms), NOW_MS) is not None
    assert counts == (at_ms > NOW_MS)
    if counts:
        assert predicted_ms(seen, running(for_ms), at_ms - 1) == total_ms
        assert predicted_ms(seen, running(for_ms), at_ms) is None
    assert outlived_at_ms(seen, None, NOW_MS) is None
    assert outlived_at_ms(job(total_run_ms=None), running(for_ms), NOW_MS) is None


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.none() | st.integers(0, 10**9), st.integers(0, 10**8), st.integers(0, NOW_MS)), max_size=9)
)
def test_the_columns_of_demand_say_the_same(jobs: list[tuple[int | None, int, int]]) -> None:
    """What all jobs together still need is reckoned a vector at a time."""
    columns, left = JobColumns(), []
    for number, (total_ms, done_ms, for_ms) in enumerate(jobs):
        seen = job(f"job_{number}", deadline_ms=number, total_run_ms=total_ms, done_ms=done_ms)
        columns.put_job(seen)
        columns.put_run(seen.job_id, running(for_ms))
        left.append(remaining_ms(seen, running(for_ms), NOW_MS))
    assert columns.demand(NOW_MS, 10**15)[1].tolist() == left
