"""Whether two jobs that train as one still help each other. Pure.

Ymir, section 4.4: where the validation of a merged job does not improve within the first epochs, the two are split.
"""

from __future__ import annotations

import math
from typing import Any

EPOCHS = 2.0


class LossMonitor:
    """Watches the held-out losses of a merged run; what they were before any training is what must be undercut.

    `epochs`: how many epochs a side has to improve in. Of a side that waits (in turn) the epochs are those of the one
    that trains.
    """

    def __init__(self, epochs: float = EPOCHS) -> None:
        self._epochs = epochs
        self._before: dict[str, float] = {}
        self._improved: dict[str, bool] = {}

    def knows(self, side: str) -> bool:
        """Whether a first loss of this side was seen."""
        return side in self._before

    def add(self, side: str, epochs: float, loss: float) -> str | None:
        """Take in a held-out loss after so many epochs. Why the two are to be split, or None."""
        if not math.isfinite(loss):
            return f"the held-out loss of {side} is {loss}"
        if side not in self._before:
            self._before[side] = loss
            self._improved[side] = False
            return None
        before = self._before[side]
        self._improved[side] = self._improved[side] or loss < before
        if self._improved[side] or epochs < self._epochs:
            return None
        return f"after {epochs:.3g} epochs the held-out loss of {side} was never below the {before:.4g} it began with"

    def state(self) -> dict[str, Any]:
        """All of it, as plain data."""
        return {"before": dict(self._before), "improved": dict(self._improved)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self._before, self._improved = dict(state["before"]), dict(state["improved"])
