"""Measured points on their way to the control plane: as many as a curve needs, however many a script writes.

A script may take a step in a microsecond and tell of each. Sending all of that would hold its run, and its GPUs, long
after it has ended; so a run has a budget of points. It is filled at a rate that falls as the run's points grow in
number, and while it lasts nothing is left out. Beyond it the points of a stretch are thinned: its first and last stay,
and the lowest and highest of each name in every part of it, so that no spike disappears.
"""

from __future__ import annotations

import threading
import time
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence

BURST_POINTS = 5000  # so many at once
POINTS_PER_S = 50.0  # and so many a second
STEADY_POINTS = 100_000  # until a run has sent so many; with twice as many, half as often
LEAST_POINTS = 10  # worth a report, once there is more than may be sent
LEAST_AT_A_CHECKPOINT = 100
MOST_NUMBERS = 20_000  # may wait in memory, values and points together
REPORT_POINTS = 1000
REPORT_NUMBERS = 10_000
REPORT_BYTES = 4 * 1024 * 1024  # at most, as JSON; the server takes twice as much


class Point(NamedTuple):
    step: int
    at_ms: int
    values: Dict[str, float]


class Points:
    """A queue, bounded in number; thread-safe. `add` never waits."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()  # guards all below
        self._points: List[Point] = []
        self._numbers = 0
        self._may_send = float(BURST_POINTS)
        self._filled_s = now_s()
        self._sent = 0
        self.left_out = 0

    def add(self, points: Sequence[Point]) -> None:
        with self._lock:
            self._points += points
            self._numbers += sum(len(point.values) + 1 for point in points)
            if self._numbers > MOST_NUMBERS:
                share = MOST_NUMBERS / 2 / self._numbers
                self._thin(max(LEAST_POINTS, int(len(self._points) * share)))

    def take(self, *, at_once: bool) -> List[Point]:
        """What is to be sent now; nothing where there is nothing, or it is better to wait for more.

        `at_once`: somebody waits for what is there."""
        with self._lock:
            self._fill()
            may_send = int(self._may_send)
            if len(self._points) > may_send:
                if not at_once and may_send < LEAST_POINTS:
                    return []
                self._thin(max(may_send, LEAST_AT_A_CHECKPOINT if at_once else LEAST_POINTS))
            taken, self._points, self._numbers = self._points, [], 0
            self._may_send = max(0.0, self._may_send - len(taken))
            self._sent += len(taken)
            return taken

    def leave_out(self, count: int) -> None:
        """So many were not even looked at."""
        with self._lock:
            self.left_out += count

    def _fill(self) -> None:
        now_s = self._now_s()
        rate = POINTS_PER_S * min(1.0, STEADY_POINTS / max(1, self._sent))
        self._may_send = min(float(BURST_POINTS), self._may_send + (now_s - self._filled_s) * rate)
        self._filled_s = now_s

    def _thin(self, most: int) -> None:
        kept = thinned(self._points, most)
        self.left_out += len(self._points) - len(kept)
        self._points = kept
        self._numbers = sum(len(point.values) + 1 for point in kept)


def thinned(points: Sequence[Point], most: int) -> List[Point]:
    """At most `most` (2 or more) of the points, in order: the first and the last, and the lowest and highest of each
    name in every stretch, as far as there is room for them.

    Of a step that is told again only the last counts.
    """
    last = {point.step: index for index, point in enumerate(points)}
    if len(last) < len(points):
        points = [point for index, point in enumerate(points) if last[point.step] == index]
    if len(points) <= most:
        return list(points)
    names = len({name for point in points for name in point.values})
    stretches = max(1, (most - 2) // (2 * max(1, names)))
    length = -(-len(points) // stretches)
    kept = {0, len(points) - 1}
    for start in range(0, len(points), length):
        kept |= _extremes(points, range(start, min(start + length, len(points))))
    return [points[index] for index in _spread(sorted(kept), most)]


def _extremes(points: Sequence[Point], stretch: Iterable[int]) -> "set[int]":
    lowest: Dict[str, float] = {}
    highest: Dict[str, float] = {}
    low_at: Dict[str, int] = {}
    high_at: Dict[str, int] = {}
    for index in stretch:
        for name, value in points[index].values.items():
            if name not in lowest:
                lowest[name] = highest[name] = value
                low_at[name] = high_at[name] = index
            elif value < lowest[name]:
                lowest[name], low_at[name] = value, index
            elif value > highest[name]:
                highest[name], high_at[name] = value, index
    return {*low_at.values(), *high_at.values()}


def _spread(indices: List[int], most: int) -> List[int]:
    """At most so many of them, evenly, the first and the last among them."""
    if len(indices) <= most:
        return indices
    return [indices[position * (len(indices) - 1) // (most - 1)] for position in range(most)]


def reports_of(points: Sequence[Point]) -> Iterator[List[Point]]:
    """Cut into what one report may hold."""
    report: List[Point] = []
    numbers = size_bytes = 0
    for point in points:
        numbers += len(point.values) + 1
        size_bytes += _most_bytes(point)
        if report and (len(report) >= REPORT_POINTS or numbers > REPORT_NUMBERS or size_bytes > REPORT_BYTES):
            yield report
            report, numbers, size_bytes = [], len(point.values) + 1, _most_bytes(point)
        report.append(point)
    if report:
        yield report


def _most_bytes(point: Point) -> int:
    """As JSON, where every character of a name may be written as six."""
    return 60 + sum(6 * len(name) + 30 for name in point.values)
