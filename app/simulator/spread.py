"""How sure a difference between policies is: the spread of figures over seeds, and paired tests.

All policies are played on the same draws, so differences are taken seed by seed: what the draw does to all of them
falls out.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

COMPARED = ("cost_usd", "mean_jct_s", "mean_wait_s", "deadline_miss_share")
_LEVEL = 0.95

Figures = Mapping[str, Any]


def deviations(several: Sequence[Figures]) -> dict[str, float]:
    """The standard deviation over the seeds of each figure that is a number."""
    numbers = [name for name, value in several[0].items() if not isinstance(value, Mapping)]
    return {name: statistics.stdev(one[name] for one in several) for name in numbers}


def paired(first: Sequence[Figures], other: Sequence[Figures]) -> dict[str, dict[str, float]]:
    """Of each compared figure: the mean of `first` less `other`, its 95 % interval, and the p-value of a two-sided
    paired t-test that there is no difference. Both are in the order of the seeds, two at least."""
    return {
        name: _difference([one[name] - its[name] for one, its in zip(first, other, strict=True)]) for name in COMPARED
    }


def _difference(differences: Sequence[float]) -> dict[str, float]:
    many = len(differences)
    mean, deviation = statistics.mean(differences), statistics.stdev(differences)
    error = deviation / many**0.5
    from scipy.stats import t as student  # loads for half a second: not when a server starts

    half = float(student.ppf((1 + _LEVEL) / 2, many - 1)) * error
    by_chance = float(2 * student.sf(abs(mean) / error, many - 1)) if error else float(mean == 0)
    return {"mean": mean, "low": mean - half, "high": mean + half, "p_value": by_chance}
