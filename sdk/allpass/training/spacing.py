"""How far apart checkpoints are: what was asked for, or less on machines that are known to fail."""

from __future__ import annotations

import math
from typing import Optional

DEFAULT_INTERVAL_S = 300.0
LEAST_S = 60.0
UNMEASURED_S = 10.0  # what a save is taken to cost before there was one


class Spacing:
    """After which time another checkpoint is worth what it costs.

    On machines that live for M on average until they fail, with saves that take C, that is sqrt(2 C M) (Young, "A first
    order approximation to the optimum checkpoint interval", 1974). C is what the last save took, also where training
    went on meanwhile: nothing is gained by saves that follow each other without a pause.
    """

    def __init__(self, interval_s: float, mean_life_s: float) -> None:
        self._most_s, self._mean_life_s = interval_s, mean_life_s
        self._took_s = UNMEASURED_S

    @property
    def interval_s(self) -> float:
        """Never more than was asked for."""
        if not self._mean_life_s:
            return self._most_s
        best_s = math.sqrt(2 * self._took_s * self._mean_life_s)
        return min(self._most_s, max(LEAST_S, 2 * self._took_s, best_s))

    def saved(self, took_s: float) -> None:
        """A save took so long, until it was on the disk."""
        self._took_s = max(0.0, took_s)


def spacing(interval: Optional[str], mean_life: Optional[str]) -> Spacing:
    """As the environment says. Raises ValueError naming the variable."""
    interval_s = _seconds("ALLPASS_CHECKPOINT_INTERVAL_S", interval) or DEFAULT_INTERVAL_S
    return Spacing(interval_s, _seconds("ALLPASS_MEAN_LIFE_S", mean_life))


def _seconds(variable: str, text: Optional[str]) -> float:
    """0 where nothing is said."""
    if not text:
        return 0.0
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise ValueError(f"{variable} is {text!r}: a number of seconds above 0 was expected")
    return seconds
