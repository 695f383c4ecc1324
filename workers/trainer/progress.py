"""What evaluations come to: the best one, whether the target is reached, whether hope is lost. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from allpass.recipe.settings import Recipe


class Progress:
    """`step` of the best evaluation (0: none yet) and its `metrics`; `ended` says why training is over, or is None."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.step = 0
        self.metrics: dict[str, float] = {}
        self.without_gain = 0
        self.evaluated_step = 0
        self.ended: str | None = None

    def add(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Take in an evaluation; whether it is the best so far. A value that is no number never is."""
        self.evaluated_step = step
        name, goal = self._recipe.metric
        value = metrics[name]
        sign = 1 if goal == "max" else -1
        best = self.metrics.get(name, -sign * math.inf)
        is_better = sign * value > sign * best
        if is_better:
            self.step, self.metrics, self.without_gain = step, dict(metrics), 0
        else:
            self.without_gain += 1
        self.ended = self._end(value, sign)
        return is_better

    def _end(self, value: float, sign: int) -> str | None:
        recipe = self._recipe
        if recipe.target is not None:
            ((name, wanted),) = recipe.target.items()
            if sign * value >= sign * wanted:
                return f"the target is reached: {name} is {value:.4g}, wanted was {wanted:g}"
        if recipe.patience is not None and self.without_gain >= recipe.patience:
            return f"{self.without_gain} evaluations in a row brought nothing better"
        return None

    def state(self) -> dict[str, Any]:
        """All of it, as plain data."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        for name in self.state():
            setattr(self, name, state[name])
