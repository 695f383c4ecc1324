"""Between which bounds an end lies: measured ends are inside, bounds close with time, and nothing breaks them."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.merging.bounds import Bounds, around, by_age, by_history, foretold_end, span_of
from app.simulator.mergeable import Trainee

# Held-out losses after 2, 4, 6, ... steps of three trainings of `benchmarks.transfer`, and where each came to 0.15.
KNOWN_TASK = (
    [1.02, 1.01, 1.0, 0.98, 0.96, 0.93, 0.89, 0.85, 0.8, 0.74, 0.68, 0.61, 0.55, 0.48, 0.42, 0.36, 0.31, 0.26, 0.21,
     0.18],
    42,
)  # fmt: skip
OTHER_TASK = (
    [1.05, 1.04, 1.03, 1.01, 0.99, 0.97, 0.94, 0.9, 0.85, 0.8, 0.74, 0.66, 0.59, 0.51, 0.43, 0.37, 0.31, 0.25, 0.2,
     0.16],
    41,
)  # fmt: skip
UNSEEN_TASK = (
    [5.91, 5.89, 5.87, 5.83, 5.78, 5.72, 5.64, 5.53, 5.39, 5.19, 4.94, 4.64, 4.3, 3.92, 3.52, 3.16, 2.87, 2.61, 2.36,
     2.15, 1.99, 1.88, 1.78, 1.67, 1.56, 1.44, 1.3, 1.15, 1.01, 0.88, 0.76, 0.64, 0.54, 0.45, 0.36, 0.29, 0.23, 0.17],
    78,
)  # fmt: skip
TARGET = 0.15

steps = st.floats(0, 1e9)
numbers = st.floats(allow_nan=True, allow_infinity=True)


def series(losses: list[float]) -> list[tuple[float, float]]:
    return [(2.0 * (place + 1), loss) for place, loss in enumerate(losses)]


@pytest.mark.parametrize("course", [KNOWN_TASK, OTHER_TASK, UNSEEN_TASK], ids=["known", "other", "unseen"])
@pytest.mark.parametrize("seen_share", [0.25, 0.5, 0.75, 0.9])
def test_real_ends_lie_within(course: tuple[list[float], int], seen_share: float) -> None:
    """Whatever share of the way has been seen, though the curve alone is off by up to a half at half of the way."""
    losses, end = course
    known = [one for one in series(losses) if one[0] <= seen_share * end]
    span = span_of(known, TARGET)
    assert span is not None
    assert span.least <= end <= span.most
    assert span.least >= known[-1][0]


def test_bounds_close_as_a_job_goes_on() -> None:
    """At three quarters of a real training the bounds are less than half as far apart as at half of it."""
    losses, end = UNSEEN_TASK
    widths = []
    for share in (0.5, 0.75, 0.95):
        span = span_of([one for one in series(losses) if one[0] <= share * end], TARGET)
        assert span is not None
        widths.append(span.most - span.least)
    assert widths[1] < widths[0]
    assert widths[2] < widths[0] / 2


@given(st.floats(1, 1e9), st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_the_more_was_seen_of_the_same_end_the_closer_they_are(end: float, shares: list[float]) -> None:
    """And the end that was foretold is always inside."""
    spans = [around(end, share * end) for share in sorted(shares)]
    for wider, closer in pairwise(spans):
        assert closer.least >= wider.least * (1 - 1e-9)
        assert closer.most <= wider.most * (1 + 1e-9)
    assert all(span.least <= end * (1 + 1e-9) and end <= span.most for span in spans)


@given(steps, steps)
def test_no_end_is_before_what_was_seen(end: float, seen: float) -> None:
    """Of a job that is past its prediction, too: it may end now, and it may take a fifth longer."""
    span = around(end, seen)
    assert seen <= span.least <= span.most
    assert math.isfinite(span.most)
    if seen >= end:
        assert span == Bounds(seen, pytest.approx(1.2 * seen))


def test_simulated_curves_end_within() -> None:
    """Of noisy curves of the model's own shape nine ends in ten or more lie inside, from a quarter of the way on."""
    drawn = random.Random(7)
    inside, counted = 0, 0
    for number in range(12):
        ends = drawn.randrange(200, 20_000)
        one = Trainee(
            f"t{number}", "base", (), (), 0.1, 10, ends, 1, drawn.uniform(1.5, 3.5), drawn.uniform(0.05, 0.2), 0.5
        )
        for share in (0.25, 0.5, 0.75):
            told = one.recipe(profiled=False, step=round(share * ends))
            span = span_of(told.losses, told.target_loss)
            assert span is not None
            inside, counted = inside + (span.least <= ends <= span.most), counted + 1
    assert inside >= 0.9 * counted


@pytest.mark.parametrize(
    "losses",
    [[1.0] * 30, [1.0], [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], [2.0, math.nan, 1.0, math.inf, 1e300, -1e300]],
    ids=["constant", "one point", "rising", "wild"],
)
def test_where_losses_tell_nothing_age_does(losses: list[float]) -> None:
    """As much again as a ninth of what was, up to nine times that."""
    known = [one for one in series(losses) if math.isfinite(one[1])]
    assert foretold_end(tuple(known), TARGET) is None
    assert span_of(series(losses), TARGET) == by_age(known[-1][0])
    assert by_age(90.0) == Bounds(pytest.approx(100.0), pytest.approx(900.0))


@pytest.mark.parametrize("known", [[], [(0.0, 1.0)], [(math.nan, 1.0)], [(5.0, math.nan)], [(-3.0, 1.0)]])
def test_without_a_series_nothing_is_said(known: list[tuple[float, float]]) -> None:
    """No point, none that counts, or none after a step."""
    assert span_of(known, TARGET) is None


def test_a_huge_series_costs_no_more() -> None:
    """A hundred thousand points are averaged first, and the end is found among them."""
    losses = [(float(step), 0.5 + 2 / (1 + step / 20_000)) for step in range(1, 100_001)]
    span = span_of(losses, 0.8)
    assert span is not None
    assert span.least <= 113_334 <= span.most


@settings(max_examples=25)  # a fit takes tens of milliseconds
@given(st.lists(st.tuples(numbers, numbers), max_size=30), st.none() | numbers)
def test_nothing_breaks_them(known: list[tuple[float, float]], target: float | None) -> None:
    """Steps and losses of any kind, in any order: two finite numbers in order, or nothing."""
    span = span_of(known, target)
    assert span is None or 0 <= span.least <= span.most < math.inf


@given(st.floats(0, 1e12), st.floats(0, 1e12), st.none() | st.floats(0, 1e12))
def test_what_is_left_is_never_negative(total: float, done: float, most: float | None) -> None:
    """Nor out of order, however much was done; and a limit holds."""
    left = by_history(total).within(most).less(done).times(2.0)
    assert 0 <= left.least <= left.most
    assert most is None or left.most <= 2 * most
    assert by_history(100.0) == Bounds(80.0, 125.0)
