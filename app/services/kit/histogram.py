"""How often a quantity was how large, in constant memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator


class Histogram:
    """Counts by upper bound (ascending, inclusive), and the sum of all values."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def add(self, le: float, number: int, total: float) -> None:
        """So many values that were at most `le`, and their sum. Of another release's bounds, the next larger one."""
        self._counts[bisect_left(self._bounds, le)] += number
        self.total += total

    def merge(self, other: Histogram) -> None:
        """Add what the other one, of the same bounds, has counted."""
        self._counts = [mine + its for mine, its in zip(self._counts, other._counts, strict=True)]
        self.total += other.total

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self._counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """For each bound, then infinity: how many values were at most that."""
        count = 0
        for bound, here in zip((*self._bounds, float("inf")), self._counts, strict=True):
            count += here
            yield bound, count
