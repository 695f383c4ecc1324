"""Windows that come again: what a clock of a place shows, also on the days on which it changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.standby_windows import DAYS, SHORTEST_MS, WeeklyHours, window_after, window_to_begin
from app.errors import InvalidInput
from app.services.standby.zone_clock import ZoneClock

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WEEKDAYS = "mon,tue,wed,thu,fri"


def ms(text: str) -> int:
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


def utc(*at_ms: int) -> list[str]:
    return [(_EPOCH + timedelta(milliseconds=one)).strftime("%m-%d %H:%M") for one in at_ms]


def hours(begins: str, ends: str, days: str = ",".join(DAYS), zone: str = "Europe/Rome") -> WeeklyHours:
    first, last = (int(one[:2]) * 60 + int(one[3:]) for one in (begins, ends))
    return WeeklyHours(frozenset(days.split(",")), first, last, ZoneClock(zone))


def test_nights_of_weekdays_end_on_the_day_after() -> None:
    nights = hours("20:00", "08:00", WEEKDAYS)
    friday = window_to_begin(nights, ms("2026-11-27T12:00"))
    assert utc(*friday) == ["11-27 19:00", "11-28 07:00"]
    assert utc(*window_after(nights, friday[1])) == ["11-30 19:00", "12-01 07:00"], "Monday's comes next"


def test_one_that_is_open_is_the_one_to_begin() -> None:
    """As for a server that was down when it began. One of which less than a minute is left is over."""
    nights = hours("20:00", "08:00", WEEKDAYS)
    assert utc(*window_to_begin(nights, ms("2026-11-28T03:00"))) == ["11-27 19:00", "11-28 07:00"]
    assert utc(*window_to_begin(nights, ms("2026-11-28T06:59:30"))) == ["11-30 19:00", "12-01 07:00"]


@pytest.mark.parametrize(
    ("begins", "ends", "now", "expected"),
    [
        ("20:00", "08:00", "2026-03-28T12:00", ["03-28 19:00", "03-29 06:00"]),  # eleven hours
        ("20:00", "08:00", "2026-10-24T12:00", ["10-24 18:00", "10-25 07:00"]),  # thirteen
        ("02:30", "04:00", "2026-03-29T00:00", ["03-29 01:30", "03-29 02:00"]),  # 02:30 is skipped: 03:30
        ("02:30", "04:00", "2026-10-25T00:00", ["10-25 00:30", "10-25 03:00"]),  # it is shown twice: the first
        ("02:30", "03:00", "2026-03-28T12:00", ["03-30 00:30", "03-30 01:00"]),  # nothing is left of that night's
    ],
)
def test_days_on_which_clocks_change(begins: str, ends: str, now: str, expected: list[str]) -> None:
    assert utc(*window_to_begin(hours(begins, ends), ms(now))) == expected


@given(
    st.integers(0, 1439),
    st.integers(0, 1439),
    st.sets(st.sampled_from(DAYS), min_size=1),
    st.sampled_from(
        ["Europe/Rome", "UTC", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia"]
    ),
    st.integers(ms("2020-01-01T00:00"), ms("2040-01-01T00:00")),
)
def test_windows_come_one_after_the_other(begins: int, ends: int, days: set[str], zone: str, now_ms: int) -> None:
    """Never one that is over, none is left out for good, and none begins before the one before it has ended."""
    every = WeeklyHours(frozenset(days), begins, ends, ZoneClock(zone))
    now = window_to_begin(every, now_ms)
    assert now[1] - now_ms >= SHORTEST_MS
    assert now[0] - now_ms <= 15 * 86_400_000
    for _ in range(5):
        later = window_after(every, now[1])
        assert SHORTEST_MS <= later[1] - later[0] <= 25 * 3_600_000
        assert now[1] <= later[0] <= now[1] + 15 * 86_400_000
        now = later


@pytest.mark.parametrize("name", ["Europe/Romulus", "", "/etc/passwd", "../UTC", "Europe", "a" * 100, "\x00"])
def test_zones_that_are_none(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"zone: .* is no time zone"):
        ZoneClock(name)
