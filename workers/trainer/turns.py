"""Whose step it is, when two jobs train side by side. Pure."""

from __future__ import annotations

import math

_ANNEALED = 0.8  # of the way to equal shares; Stickland and Murray, "BERT and PALs" (2019), section 4.1
_GOLDEN = (math.sqrt(5) - 1) / 2


def first_share(step: int, steps: int, first_rows: int, second_rows: int) -> float:
    """The share of steps that the first side has around `step` of `steps`: by size at first, then annealed towards
    equal shares (sizes to the power 1 - 0.8 step / steps)."""
    power = 1 - _ANNEALED * min(1.0, step / max(1, steps))
    first, second = first_rows**power, second_rows**power
    return float(first / (first + second))


def takes_first(seed: int, step: int, share: float) -> bool:
    """Whether a step is the first side's. Steps of the golden ratio fill the unit interval evenly, so that over any
    stretch of steps the share is kept to about one step."""
    return (seed * _GOLDEN**2 + step * _GOLDEN) % 1.0 < share
