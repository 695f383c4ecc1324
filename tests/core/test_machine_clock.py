"""Times of a machine whose clock is off are put right, and no time that is told can do harm."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.machine_clock import LAST_MS, TOLERATED_MS, behind_ms, put_right

NOW_MS = 1_790_000_000_000
HOUR_MS = 3_600_000
MOMENTS = st.integers(0, LAST_MS)


@pytest.mark.parametrize("off_ms", [-3 * HOUR_MS, 2 * HOUR_MS, -TOLERATED_MS - 1, TOLERATED_MS + 1])
def test_a_clock_that_is_off_is_put_right_to_the_second(off_ms: int) -> None:
    """Both ways; what was measured a minute ago was a minute ago."""
    behind = behind_ms(NOW_MS, NOW_MS + off_ms)
    assert abs(put_right(NOW_MS + off_ms - 60_000, behind) - (NOW_MS - 60_000)) < 1000


@pytest.mark.parametrize(
    "told", [NOW_MS, NOW_MS + TOLERATED_MS, NOW_MS - TOLERATED_MS, None, "1", True, -1, 1.5, LAST_MS + 1]
)
def test_what_tells_nothing_changes_nothing(told: Any) -> None:
    """A clock within the time that a call may take, an agent that names none, and what cannot be a time."""
    assert behind_ms(NOW_MS, told) == 0


@given(heard_ms=MOMENTS, told_ms=MOMENTS, at_ms=MOMENTS)
def test_it_stays_within_the_calendar(heard_ms: int, told_ms: int, at_ms: int) -> None:
    assert 0 <= put_right(at_ms, behind_ms(heard_ms, told_ms)) <= LAST_MS


@given(heard_ms=MOMENTS, off_ms=st.integers(-HOUR_MS, HOUR_MS), late_ms=st.integers(0, 400))
def test_a_late_call_moves_times_by_a_second_at_most(heard_ms: int, off_ms: int, late_ms: int) -> None:
    """But where it is the call that decides whether the clock is off at all."""
    first, second = (behind_ms(heard_ms + late, heard_ms + off_ms) for late in (0, late_ms))
    assert abs(first - second) <= 1000 or 0 in (first, second)
