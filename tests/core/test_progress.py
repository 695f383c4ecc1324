"""Estimates of when a job will be done."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.core.progress import Pace, estimate_finish_ms

counts = st.integers(0, 10**6)
positive = st.integers(1, 10**6)


def test_steps_left_times_the_measured_step() -> None:
    """From now on, and from the further of what was reported and what was measured."""
    pace = Pace(first_step=100, first_ms=5_000, last_step=150, last_ms=10_000)
    assert estimate_finish_ms(1_000_000, 150, 250, pace) == 1_010_000
    assert estimate_finish_ms(1_000_000, 200, 250, pace) == 1_005_000
    assert estimate_finish_ms(1_000_000, 0, 250, pace) == 1_010_000
    assert estimate_finish_ms(1_000_000, 300, 250, pace) == 1_000_000


def test_what_is_not_known_is_not_guessed() -> None:
    """No total, no measurement, one point only, or a clock that stood still or ran back."""
    pace = Pace(100, 5_000, 150, 10_000)
    assert estimate_finish_ms(0, 150, None, pace) is None
    assert estimate_finish_ms(0, 150, 250, None) is None
    assert estimate_finish_ms(0, 150, 250, Pace(150, 5_000, 150, 10_000)) is None
    assert estimate_finish_ms(0, 150, 250, Pace(100, 5_000, 150, 5_000)) is None
    assert estimate_finish_ms(0, 150, 250, Pace(100, 5_000, 150, 4_000)) is None


@given(counts, counts, positive, positive, counts, counts)
def test_an_estimate_is_never_in_the_past_and_shrinks_with_progress(
    now_ms: int, first: int, steps: int, elapsed_ms: int, done: int, total: int
) -> None:
    """A step further never makes the end later."""
    pace = Pace(first, 0, first + steps, elapsed_ms)
    here, further = (estimate_finish_ms(now_ms, step, total, pace) for step in (done, done + 1))
    assert here is not None
    assert further is not None
    assert now_ms <= further <= here
