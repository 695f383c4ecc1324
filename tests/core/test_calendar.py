"""Months and dates of UTC, as every calendar has them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import example, given
from hypothesis import strategies as st

from app.core.calendar import DAY_MS, LAST_MS, month_begins_ms, next_month_begins_ms, on_the_calendar_ms, written

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MS = timedelta(milliseconds=1)
moments = st.integers(0, LAST_MS)


def at(*date: int) -> int:
    return (datetime(*date, tzinfo=UTC) - EPOCH) // MS  # type: ignore[misc,arg-type]  # year, month, day and so on


@given(at_ms=moments)
@example(at_ms=at(2028, 2, 29, 23, 59, 59))
@example(at_ms=at(2100, 3, 1) - 1)
@example(at_ms=at(2000, 2, 29))
@example(at_ms=at(2026, 12, 31, 23, 59))
def test_it_is_the_calendar_that_everybody_has(at_ms: int) -> None:
    """Leap years, centuries, ends of years: the first of this month, of the next one, and the date in words."""
    there = EPOCH + at_ms * MS
    first = there.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    assert month_begins_ms(at_ms) == (first - EPOCH) // MS
    assert next_month_begins_ms(at_ms) == ((first + timedelta(days=32)).replace(day=1) - EPOCH) // MS
    assert written(at_ms) == f"{there:%Y-%m-%d %H:%M} UTC"


def test_months_follow_each_other_without_a_gap() -> None:
    """Over a hundred years, and each is of 28 to 31 days."""
    begun = at(1999, 1, 1)
    for _ in range(1200):
        after = next_month_begins_ms(begun)
        assert 28 <= (after - begun) // DAY_MS <= 31
        assert month_begins_ms(after - 1) == begun
        assert month_begins_ms(after) == after
        begun = after
    assert begun == at(2099, 1, 1)


@given(at_ms=st.integers(-(2**70), 2**70))
def test_a_clock_that_is_off_has_a_date_all_the_same(at_ms: int) -> None:
    """What lies before 1970 or beyond four digits of a year is its nearest moment."""
    shown = on_the_calendar_ms(at_ms)
    assert 0 <= shown <= LAST_MS
    assert shown == at_ms or not 0 <= at_ms <= LAST_MS
    assert len(written(shown)) == len("2026-11-24 00:00 UTC")
