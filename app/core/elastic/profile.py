"""How fast a job is at each size: measured where it has run, and a cautious guess elsewhere (section 4.3).

The paper profiles 1 .. 2G GPUs before a job begins, which asks a full cluster for idle GPUs. Here a size is measured
when the job has it. Until then speed is linear up to the requested G and flat beyond.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

WARM_UP_BATCHES, MEASURED_BATCHES = 2, 3  # section 4.3
NOISE = 0.01  # relative; the paper's bound, and what counts as no gain


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """`speed` in batches per second; `noise` is half the range of the measured batches, relative to their mean."""

    speed: float
    noise: float


@dataclass(frozen=True, slots=True)
class SpeedProfile:
    """`request`: the GPUs that were asked for. `unit`: GPUs that come and go together (a gang of one replica).
    `shards`: the logical shards V of a batch, None where any size splits it evenly: N processes take ceil(V / N)
    rounds. `elastic` false: exactly `request`, never another size. `ceiling`: the largest size worth trying.
    `predicted`: batches per second by size, of which only the proportions count, and only where nothing is measured."""

    request: int
    unit: int = 1
    shards: int | None = None
    elastic: bool = True
    measured: Mapping[int, MeasuredSpeed] = field(default_factory=dict)
    ceiling: int | None = None
    predicted: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (
            self.request < 1
            or self.unit < 1
            or self.request % self.unit
            or (self.shards is not None and self.shards < 1)
        ):
            raise ValueError("request, unit and shards are at least 1, and a request is a multiple of its unit")

    def sizes(self) -> tuple[int, ...]:
        """Those that are worth having, rising: each takes fewer rounds than all below it, up to 2G (section 4.3)."""
        if not self.elastic:
            return (self.request,)
        found: list[int] = []
        for size in range(self.unit, (self.ceiling or 2 * self.request) + 1, self.unit):
            if not found or self.rounds(size) < self.rounds(found[-1]):
                found.append(size)
        return tuple(found)

    def rounds(self, size: int) -> float:
        """How often a batch's work of one process is repeated, relative to the whole batch on one replica."""
        replicas = size // self.unit
        return 1 / replicas if self.shards is None else math.ceil(self.shards / replicas) / self.shards

    def speed(self, size: int) -> float:
        """Batches per second, or relative to one replica where nothing has been measured; 0 for no GPU.

        A size that was not measured is scaled by rounds from the nearest one that was, and never beyond `request`.
        """
        if size < self.unit:
            return 0.0
        if size in self.measured:
            return self.measured[size].speed
        capped = min(size, self.request)
        if not self.measured:
            return self.predicted.get(size, 0.0) or 1 / self.rounds(capped)
        below = [one for one in self.measured if one <= size]
        near = max(below) if below else min(self.measured)
        if size in self.predicted and near in self.predicted:
            return self.measured[near].speed * self.predicted[size] / self.predicted[near]
        reached = max(near, capped) if near < size else size
        return self.measured[near].speed * self.rounds(near) / self.rounds(reached)

    def with_batches(self, size: int, batch_s: Sequence[float]) -> SpeedProfile:
        """After the first batches at a size: two warm it up, three are measured. The same profile where there are too
        few, or one of the three is no positive time."""
        times = batch_s[WARM_UP_BATCHES : WARM_UP_BATCHES + MEASURED_BATCHES]
        found = measured_speed(times)
        return self if found is None or size < 1 else self.with_speed(size, found)

    def with_speed(self, size: int, found: MeasuredSpeed) -> SpeedProfile:
        """With what was measured at a size. Where a larger size than was asked for is no faster than the one before it,
        it is the last one that is tried."""
        smaller = [one for one in self.measured if one < size]
        stops = smaller and found.speed <= self.measured[max(smaller)].speed * (1 + max(NOISE, found.noise))
        ceiling = max(self.request, *smaller) if stops and size > self.request else self.ceiling
        return replace(self, measured={**self.measured, size: found}, ceiling=ceiling)


def measured_speed(batch_s: Sequence[float]) -> MeasuredSpeed | None:
    """Of times of a batch, in seconds; None for too few, or where one is no positive time."""
    if len(batch_s) < MEASURED_BATCHES or not all(0 < one < math.inf for one in batch_s):
        return None
    mean_s = statistics.fmean(batch_s)
    return MeasuredSpeed(1 / mean_s, (max(batch_s) - min(batch_s)) / 2 / mean_s)


def batches_of(points: Sequence[tuple[int, int]]) -> tuple[float, ...]:
    """Seconds per batch from (step, milliseconds) of one clock, in their order: without the first two stretches between
    points, the others in three groups of as many, so that each mean is of as much as there is. Empty where there are
    too few, or their steps do not rise."""
    kept = points[WARM_UP_BATCHES:]
    if len(kept) <= MEASURED_BATCHES or any(after[0] <= before[0] for before, after in pairwise(kept)):
        return ()
    each, more = divmod(len(kept) - 1, MEASURED_BATCHES)
    kept = kept[more:]
    edges = kept[::each]
    return tuple((end[1] - begin[1]) / 1000 / (end[0] - begin[0]) for begin, end in pairwise(edges))
