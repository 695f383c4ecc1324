"""Does training on one task help with another? (Ymir, section 4.1)

A task is described by how strongly its data pulls at each trained weight: the diagonal of the Fisher information of the
adapter, on a bounded sample (Task2Vec). Tasks that pull at the same weights help each other. The score is turned into a
gain, the share of steps saved, by a line fitted to the merges that have ended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from app.core.merging.problem import Floats

_TINY = 1e-12


def _inner(one: Floats, other: Floats) -> float:
    """Summed in numpy's own order: that of a BLAS product is another on every kind of processor, and two that replay
    the same snapshot have to decide the same."""
    return float(np.add.reduce(one * other))


def _length(one: Floats) -> float:
    return math.sqrt(_inner(one, one))


def score(source: Floats, target: Floats) -> float:
    """From 0 (nothing in common) to 1: the cosine of two tasks' Fisher diagonals.

    Each is divided by the sum of both first, or weights that pull hard in every task would decide alone. Raises
    ValueError for unequal or negative ones.
    """
    one, other = np.asarray(source, dtype=np.float64), np.asarray(target, dtype=np.float64)
    if one.shape != other.shape:
        raise ValueError(f"the tasks are described by {one.shape} and {other.shape} weights; only equal shapes compare")
    if bool((one < 0).any()) or bool((other < 0).any()) or not (np.isfinite(one).all() and np.isfinite(other).all()):
        raise ValueError("Fisher information is finite and never negative")
    both = one + other + _TINY
    first, second = one / both, other / both
    return _inner(first, second) / max(_TINY, _length(first) * _length(second))


def alignment(source: Floats, target: Floats) -> float:
    """From 0 (two tasks' first steps have nothing in common, or contradict each other) to 1 (they are the same).

    The Fisher diagonal has no signs, so that tasks which pull the same weights in opposite directions look alike to
    `score`. Raises ValueError for steps of unequal length, or without any.
    """
    one, other = np.asarray(source, dtype=np.float64), np.asarray(target, dtype=np.float64)
    if one.shape != other.shape:
        raise ValueError(f"the tasks are described by {one.shape} and {other.shape} sums; only equal shapes compare")
    length = _length(one) * _length(other)
    if not (np.isfinite(length) and length > 0):
        raise ValueError("a first step is finite and not zero")
    return max(0.0, _inner(one, other) / length)


def is_profile(fisher: Sequence[float], pull: Sequence[float]) -> bool:
    """Whether a task's description can be compared with others: Fisher information that is finite and not negative, and
    a first step that is finite and not zero."""
    diagonal, step = np.asarray(fisher, dtype=np.float64), np.asarray(pull, dtype=np.float64)
    with np.errstate(over="ignore"):
        length = _length(step)
    return bool(np.isfinite(diagonal).all() and (diagonal >= 0).all() and np.isfinite(length) and length > 0)


@lru_cache(maxsize=65536)  # pure, and asked again with every decision while jobs wait
def alignment_of(source: tuple[float, ...], target: tuple[float, ...]) -> float | None:
    """As `alignment`, of sketches that are kept as tuples; None: they cannot be compared."""
    try:
        return alignment(np.array(source), np.array(target))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class GainLine:
    """gain = `base` + `slope` x score, least squares over the merges seen so far, held by a prior that counts like
    `prior_count` merges on the prior line with scores spread by `prior_spread`.

    The prior is cautious: no gain at a score of `prior_zero`, and 0.5 above that per unit of score.
    """

    prior_count: float = 8.0
    prior_slope: float = 0.5
    prior_zero: float = 0.5
    prior_spread: float = 0.25
    count: int = 0
    sum_score: float = 0.0
    sum_gain: float = 0.0
    sum_square: float = 0.0
    sum_product: float = 0.0

    def learned(self, seen_score: float, seen_gain: float) -> GainLine:
        """With one more finished merge."""
        return replace(
            self,
            count=self.count + 1,
            sum_score=self.sum_score + seen_score,
            sum_gain=self.sum_gain + seen_gain,
            sum_square=self.sum_square + seen_score**2,
            sum_product=self.sum_product + seen_score * seen_gain,
        )

    def gain(self, of_score: float) -> float:
        """The share of steps that is expected to be saved: 0.5 means steps / 1.5. Never below -0.9."""
        slope, base = self._line()
        return max(-0.9, base + slope * of_score)

    def _line(self) -> tuple[float, float]:
        weight, middle = self.prior_count, self.prior_zero
        count = self.count + weight
        score_mean = (self.sum_score + weight * middle) / count
        gain_mean = self.sum_gain / count  # the prior line is zero in its middle
        spread = weight * self.prior_spread**2
        square = self.sum_square + weight * middle**2 + spread - count * score_mean**2
        product = self.sum_product + self.prior_slope * spread - count * score_mean * gain_mean
        slope = product / max(_TINY, square)
        return slope, gain_mean - slope * score_mean


# Before any merge has ended; scores are alignments. `benchmarks.transfer` (families 1, 3, 4 and 5, a seed each: 180
# merges) found a slope of 1.51 that is zero at 0.10 for jobs in turn, and one of 0.52 that is zero at 0.28 for jobs
# side by side, with scores spread by about 0.25. That was one kind of task on one small model: less is promised.
IN_TURN = GainLine(prior_slope=1.0, prior_zero=0.1)
TOGETHER = GainLine(prior_slope=0.5, prior_zero=0.3)


def mutual(one_way: float, other_way: float) -> float:
    """The score of two tasks trained side by side: the mean of both directions."""
    return (one_way + other_way) / 2


def scores(tasks: Sequence[Floats]) -> Floats:
    """(N, N) scores of all pairs; 1 on the diagonal."""
    found = np.eye(len(tasks))
    for row, one in enumerate(tasks):
        for column in range(row):
            found[row, column] = found[column, row] = score(one, tasks[column])
    return found
