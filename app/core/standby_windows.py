"""Hours of a local clock that come again on some days of the week. Pure: the clock is an argument.

A window that the clock's change makes longer or shorter is just that: its ends are what the clock shows.
A time that the clock skips is as much later as it is put forward; of one that it shows twice the first counts. A window
that nothing is left of by that is not one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
SHORTEST_MS = 60_000
_THURSDAY = 3  # the day on which days begin to be counted
_DAYS_BACK, _DAYS_AHEAD = 2, 16


class LocalClock(Protocol):
    """What clocks of a place show. Days are counted from 1970-01-01."""

    def day_of(self, at_ms: int) -> int:
        """The day there at that moment."""
        ...

    def instant_ms(self, day: int, minute: int) -> int:
        """When clocks there show that minute of that day."""
        ...


@dataclass(frozen=True, slots=True)
class WeeklyHours:
    """`days`: those on which it begins; minutes of the day. It ends the day after, where that is no later than it
    begins."""

    days: frozenset[str]
    from_minute: int
    until_minute: int
    clock: LocalClock


def window_to_begin(hours: WeeklyHours, now_ms: int) -> tuple[int, int]:
    """Of the window that is open, or else the next one: when it begins, and ends. One of which less than a minute is
    left is over."""
    return next(found for found in _around(hours, now_ms) if found[1] - now_ms >= SHORTEST_MS)


def window_after(hours: WeeklyHours, until_ms: int) -> tuple[int, int]:
    """The first one that begins at that moment or later."""
    return next(found for found in _around(hours, until_ms) if found[0] >= until_ms)


def written_minute(minute: int) -> str:
    """`20:00`."""
    return f"{minute // 60:02d}:{minute % 60:02d}"


def _around(hours: WeeklyHours, at_ms: int) -> Iterator[tuple[int, int]]:
    today = hours.clock.day_of(at_ms)
    over_night = hours.until_minute <= hours.from_minute
    for day in range(today - _DAYS_BACK, today + _DAYS_AHEAD):
        if DAYS[(day + _THURSDAY) % 7] not in hours.days:
            continue
        begins_ms = hours.clock.instant_ms(day, hours.from_minute)
        ends_ms = hours.clock.instant_ms(day + over_night, hours.until_minute)
        if ends_ms - begins_ms >= SHORTEST_MS:
            yield begins_ms, ends_ms
