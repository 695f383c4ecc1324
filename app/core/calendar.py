"""Hours, days and months of UTC as milliseconds since the epoch. Pure: no time zone, no clock.

Days are counted in years that begin in March, so that the day which not every year has is the last one.
"""

from __future__ import annotations

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LAST_MS = 250_000_000_000_000  # a moment of the year 9892: a clock beyond it is off, and is read as this
_DAYS_OF_400_YEARS = 146_097
_EPOCH_DAY = 719_468  # 1970-01-01, counted from the first of March of the year 0


def on_the_calendar_ms(at_ms: int) -> int:
    """The moment, or the nearest one that has a date of four digits after 1970."""
    return min(max(at_ms, 0), LAST_MS)


def month_begins_ms(at_ms: int) -> int:
    """When the month of this moment began."""
    day = at_ms // DAY_MS
    return (day - _date(day)[2] + 1) * DAY_MS


def next_month_begins_ms(at_ms: int) -> int:
    """When the month after that of this moment begins."""
    return month_begins_ms(month_begins_ms(at_ms) + 32 * DAY_MS)


def written(at_ms: int) -> str:
    """`2026-11-24 00:00 UTC`: to the minute."""
    year, month, day = _date(at_ms // DAY_MS)
    hour, minute = at_ms % DAY_MS // HOUR_MS, at_ms % HOUR_MS // 60_000
    return f"{year:04d}-{month:02d}-{day:02d} {hour:02d}:{minute:02d} UTC"


def _date(day: int) -> tuple[int, int, int]:
    """Year, month and day of a day that is counted from 1970-01-01."""
    cycle, left = divmod(day + _EPOCH_DAY, _DAYS_OF_400_YEARS)
    year = (left - left // 1460 + left // 36_524 - left // 146_096) // 365
    day_of_year = left - (365 * year + year // 4 - year // 100)
    month = (5 * day_of_year + 2) // 153  # from March on
    first = (153 * month + 2) // 5
    in_next = month >= 10
    return cycle * 400 + year + in_next, month - 9 if in_next else month + 3, day_of_year - first + 1
