"""How long a job has still to train: what is believed, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.merging.bounds import around
from app.core.merging.estimates import last_step, sizes_of, train_left, train_ms
from app.core.model.job import JobState
from app.core.model.run import RunState
from tests.core.merging.mergeable import MINUTE_MS, NOW_MS, RECIPE, mergeable
from tests.core.samples import run


def losses(until: int) -> tuple[tuple[int, float], ...]:
    """Of a job that comes down to 0.7 with step 1000."""
    return tuple((step, 0.5 + 2 / (1 + 9 * step / 1000)) for step in range(0, until + 1, 20))


def test_history_counts_until_half_is_seen() -> None:
    """A prediction from history holds while less than half of the curve's steps are seen; then the curve does."""
    known = {"target_loss": 0.7}
    young = mergeable("job_a", recipe=known | {"losses": losses(400)})
    assert train_ms(young, None, 1, NOW_MS) == 30 * MINUTE_MS
    old = mergeable("job_a", recipe=known | {"losses": losses(600)}, done_ms=600_000)
    assert train_ms(old, None, 1, NOW_MS) == pytest.approx(400_000, rel=0.02)


def test_the_curve_alone_where_nothing_else_is_known() -> None:
    """Without a prediction the curve counts from the beginning; without either nothing is known."""
    early = mergeable("job_a", recipe={"target_loss": 0.7, "losses": losses(200)}, total_run_ms=None)
    assert train_ms(early, None, 1, NOW_MS) == pytest.approx(1_000_000, rel=0.05)
    assert train_ms(mergeable("job_a", total_run_ms=None), None, 1, NOW_MS) is None
    assert last_step((), 0.7) is None


def test_time_follows_the_table() -> None:
    """On two GPUs it takes what a step takes there; on a number that was never measured nobody knows."""
    job = mergeable("job_a")
    assert sizes_of(RECIPE) == (1, 2)
    assert train_ms(job, None, 2, NOW_MS) == 18 * MINUTE_MS
    assert train_ms(job, None, 3, NOW_MS) is None


def test_what_has_run_is_taken_off() -> None:
    """Of a job that trains, what its present run has done counts too, and never less than a second is left."""
    job = mergeable("job_a", JobState.RUNNING, done_ms=5 * MINUTE_MS)
    held = run("run_a", "job_a", "node_a", RunState.RUNNING, running_since_ms=NOW_MS - 10 * MINUTE_MS)
    assert train_ms(job, held, 1, NOW_MS) == 15 * MINUTE_MS
    assert train_ms(job, held, 1, NOW_MS + 20 * MINUTE_MS) == 1_000
    assert train_ms(job, held, 1, NOW_MS + 60 * MINUTE_MS) is None, "it has outlived its prediction"


def test_bounds_of_what_history_says() -> None:
    """A quarter either way of the whole, as far as a prediction is believed; what has run is taken off all three."""
    left = train_left(mergeable("job_a"), None, 1, NOW_MS)
    assert left is not None
    assert (left.span.least, left.likely, left.span.most) == (24 * MINUTE_MS, 30 * MINUTE_MS, 37.5 * MINUTE_MS)
    on_two = train_left(mergeable("job_a"), None, 2, NOW_MS)
    assert on_two is not None
    assert on_two.span.most == pytest.approx(0.6 * 37.5 * MINUTE_MS)
    late = train_left(mergeable("job_a", done_ms=31 * MINUTE_MS), None, 1, NOW_MS)
    assert late is not None
    assert (late.span.least, late.likely, late.span.most) == (1_000, 1_000, 6.5 * MINUTE_MS)
    assert train_left(mergeable("job_a"), None, 3, NOW_MS) is None


def test_bounds_of_what_losses_say() -> None:
    """Those of the curve, in the time of a step; never beyond the steps that the job has, unless it is past them."""
    known = {"target_loss": 0.7, "losses": losses(600)}
    job = mergeable("job_a", recipe=known, done_ms=600_000)
    left, ends = train_left(job, None, 1, NOW_MS), last_step(losses(600), 0.7)
    assert left is not None
    assert ends is not None
    whole = around(ends, 600)
    assert left.span.least == pytest.approx(1_000 * whole.least - 600_000)
    assert left.span.most == pytest.approx(1_000 * whole.most - 600_000)
    capped = train_left(replace(job, total_steps=1_100), None, 1, NOW_MS)
    assert capped is not None
    assert capped.span.most == 500_000
    assert train_left(replace(job, total_steps=300), None, 1, NOW_MS) == left


@settings(max_examples=25)  # a fit takes tens of milliseconds
@given(
    st.lists(st.tuples(st.integers(0, 2000), st.floats()), max_size=25),
    st.none() | st.floats(),
    st.none() | st.integers(0, 10**12),
    st.integers(0, 10**12),
    st.none() | st.integers(0, 3000),
)
def test_bounds_hold_what_is_likely_whatever_is_known(
    seen: list[tuple[int, float]], target: float | None, total_ms: int | None, done_ms: int, steps: int | None
) -> None:
    """No losses, wild ones, a prediction that is long past: at least a second, in order, and finite; and so when more
    caution is asked for."""
    known = {"target_loss": target, "losses": tuple(sorted(seen, key=lambda one: one[0]))}
    job = mergeable("job_a", recipe=known, total_run_ms=total_ms, done_ms=done_ms, total_steps=steps)
    left = train_left(job, None, 1, NOW_MS)
    if left is not None:
        for one in (left, left.later(60_000)):
            assert 1_000 <= one.span.least <= one.likely <= one.span.most < float("inf")
