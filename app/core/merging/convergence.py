"""How many steps a job still needs: a curve through its losses (Ymir, section 4.2).

loss(k) = 1 / (b3 k^2 + b2 k + b1) + b0 with coefficients of zero or more: it falls, ever more slowly, towards b0. Few
steps and noisy losses have to do: long series are averaged in stretches, outliers count less, and the fit is repeated
as steps come.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from app.core.merging.problem import Floats

LEAST_POINTS = 5
FLAT_DECREASE = 0.001  # per step: the paper's end of training
_MOST_POINTS = 120
_FLOORS = 48
_ROUNDS = 3
_HUBER = 1.345  # deviations of noise beyond which a point counts less
_LONGEST = 10**9
_LARGEST = 1e12  # of a loss that a curve is put through, and of its inverse: beyond, squares and fourth powers are lost


@dataclass(frozen=True, slots=True)
class LossCurve:
    """`b1`, `b2`, `b3` of zero or more, not all zero; `floor` is b0. `noise` is the deviation of the losses from it."""

    b1: float
    b2: float
    b3: float
    floor: float
    noise: float

    def at(self, step: float) -> float:
        """The loss expected after so many steps."""
        below = self.b1 + self.b2 * step + self.b3 * step * step
        return self.floor + (1 / below if below > 0 else math.inf)

    def falls_at(self, step: float) -> float:
        """By how much the loss falls per step there."""
        below = self.b1 + self.b2 * step + self.b3 * step * step
        return (self.b2 + 2 * self.b3 * step) / below**2 if below > 0 else math.inf

    def flat_step(self, decrease: float = FLAT_DECREASE) -> int:
        """From this step on the loss falls by at most `decrease` per step."""
        return _first(lambda step: self.falls_at(step) <= decrease, self._steepest())

    def step_at(self, target: float) -> int | None:
        """The first step with a loss of at most `target`. None: the curve never comes down to it."""
        if self.at(0) <= target:
            return 0
        if self.at(_LONGEST) > target:
            return None
        return _first(lambda step: self.at(step) <= target, 0)

    def _steepest(self) -> int:
        """The fall per step may grow at first: from here on it only shrinks."""
        if self.b3 == 0:
            return 0
        # The derivative of the fall is zero where 3 b3^2 k^2 + 3 b3 b2 k + b2^2 - b3 b1 = 0.
        root = 9 * self.b3**2 * self.b2**2 - 12 * self.b3**2 * (self.b2**2 - self.b3 * self.b1)
        return 0 if root <= 0 else max(0, math.ceil((-3 * self.b3 * self.b2 + math.sqrt(root)) / (6 * self.b3**2)))


def fit_curve(steps: Sequence[float], losses: Sequence[float]) -> LossCurve | None:
    """The curve through these losses. None: too few that can be counted with, or they do not fall."""
    known = [(step, loss) for step, loss in zip(steps, losses, strict=True) if abs(loss) <= _LARGEST]
    if len(known) < LEAST_POINTS:
        return None
    at, seen, weights = _stretches(np.array(known, dtype=np.float64))
    for _ in range(_ROUNDS):
        curve = _best_floor(at, seen, weights)
        if curve is None:
            return None
        off = np.abs(np.array([curve.at(step) for step in at]) - seen)
        scale = 1.4826 * float(np.median(off)) or 1e-12
        weights = weights * np.minimum(1.0, _HUBER * scale / np.maximum(off, 1e-12))
    return curve


def steps_left(curve: LossCurve, step: int, *, target: float | None = None, gain: float = 0.0) -> int | None:
    """Steps from `step` to the target, else to where the loss is flat; divided by 1 + `gain` under transfer.

    None: the target is out of reach.
    """
    end = curve.flat_step() if target is None else curve.step_at(target)
    return None if end is None else math.ceil(max(0, end - step) / (1 + gain))


def steps_together(first: int, second: int, gain: float) -> int:
    """Steps of two jobs trained side by side (equation 4): the sum of both, shortened by the mean gain."""
    return math.ceil((first + second) / (1 + gain))


def _stretches(points: Floats) -> tuple[Floats, Floats, Floats]:
    """Steps, mean losses and how many losses each stands for; at most `_MOST_POINTS` of them."""
    points = points[np.argsort(points[:, 0], kind="stable")]
    parts = np.array_split(points, min(len(points), _MOST_POINTS))
    means = np.array([part.mean(axis=0) for part in parts])
    return means[:, 0], means[:, 1], np.sqrt(np.array([len(part) for part in parts], dtype=np.float64))


def _best_floor(at: Floats, seen: Floats, weights: Floats) -> LossCurve | None:
    """The best of a row of floors, then of a finer row around it."""
    span = float(seen.max() - seen.min())
    if span <= 1 / _LARGEST:
        return None
    low, high = float(seen.min()) - 2 * span, float(seen.min()) - 1e-3 * span
    best: tuple[float, LossCurve] | None = None
    for _ in range(3):
        floors = np.linspace(low, high, _FLOORS)
        fits = [fit for floor in floors if (fit := _fit_at(float(floor), at, seen, weights)) is not None]
        if not fits:
            return None if best is None else best[1]
        best = min([*fits, *([best] if best else [])], key=lambda fit: fit[0])
        width = (high - low) / _FLOORS
        low, high = best[1].floor - width, min(best[1].floor + width, float(seen.min()) - 1e-6 * span)
    return None if best is None else best[1]


def _fit_at(floor: float, at: Floats, seen: Floats, weights: Floats) -> tuple[float, LossCurve] | None:
    """With the floor given, 1 / (loss - floor) is a polynomial of the step. An error there counts by how much it moves
    the loss: by (loss - floor)^2."""
    above = seen - floor
    scale = max(1.0, float(at.max()))
    terms = np.column_stack([np.ones_like(at), at / scale, (at / scale) ** 2])
    count = weights * above**2
    from scipy.optimize import nnls  # loads for half a second: not when a server starts

    found, _ = nnls(terms * count[:, None], count / above)
    below = terms @ found
    if not (found[1] > 0 or found[2] > 0) or bool((below <= 0).any()):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        off = (floor + 1 / below - seen) * weights
        error = float(off @ off)
    if not math.isfinite(error):  # losses so far apart that squares are lost
        return None
    noise = math.sqrt(error / float(weights @ weights))
    b1, b2, b3 = (float(value) for value in found)
    return error, LossCurve(b1, b2 / scale, b3 / scale**2, floor, noise)


def _first(holds: Callable[[int], bool], start: int) -> int:
    """The first step from `start` on for which it holds, where it holds for ever from some step on."""
    if holds(start):
        return start
    low, reach = start, 1
    while not holds(start + reach) and reach < _LONGEST:
        low, reach = start + reach, reach * 2
    high = min(start + reach, _LONGEST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
