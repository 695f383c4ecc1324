"""Numbers of GPUs for groups that are given: exact multiple-choice knapsacks."""

from __future__ import annotations

import numpy as np

from app.core.merging.problem import Floats, Ints


def best_sizes(costs: Floats, sizes: Ints, gpus: int) -> tuple[float, Ints]:
    """The least sum of one cost per row with at most `gpus` GPUs, and each row's column.

    `costs`: (G, 1 + A), the first column for no GPU at all; infinite where not allowed. Dynamic programming over GPUs,
    O(G x A x gpus). Raises ValueError when no choice exists.
    """
    weights = np.concatenate([[0], sizes])
    before = _before(weights, gpus)
    every = np.arange(gpus + 1)
    least = np.zeros(gpus + 2)
    least[-1] = np.inf
    chosen = np.zeros((len(costs), gpus + 1), dtype=np.int64)
    for row, cost in enumerate(costs):
        reach = least[before] + cost[:, None]
        chosen[row] = reach.argmin(axis=0)
        least[:-1] = reach[chosen[row], every]
    total = float(least[gpus])
    if not np.isfinite(total):
        raise ValueError(f"no choice of sizes fits {gpus} GPUs")
    columns = np.zeros(len(costs), dtype=np.int64)
    left = gpus
    for row in range(len(costs) - 1, -1, -1):
        columns[row] = chosen[row, left]
        left -= int(weights[columns[row]])
    return total, columns


def cost_curve(costs: Floats, sizes: Ints, gpus: int) -> Floats:
    """(gpus + 1,) the least sum of one cost per row with at most so many GPUs."""
    before = _before(np.concatenate([[0], sizes]), gpus)
    least = np.zeros(gpus + 2)
    least[-1] = np.inf
    for cost in costs:
        least[:-1] = (least[before] + cost[:, None]).min(axis=0)
    return least[:-1]


def _before(weights: Ints, gpus: int) -> Ints:
    """(1 + A, gpus + 1) how many GPUs are left for the others; -1, the place of an infinite cost, where too few are."""
    left = np.arange(gpus + 1)[None, :] - weights[:, None]
    return np.where(left >= 0, left, -1)


def best_split(curves: list[tuple[Floats, Floats]], gpus: int) -> tuple[float, list[int]]:
    """GPUs dealt out among parts, each of which has two curves to choose from: the least sum, and each part's choice.

    A part's curves may be shorter than `gpus + 1`: more GPUs than that change nothing.
    """
    least = np.zeros(gpus + 1)
    picked: list[tuple[Ints, Ints]] = []
    every = np.arange(gpus + 1)
    for pair in curves:
        both = np.stack(pair)
        better, curve = both.argmin(axis=0), both.min(axis=0)
        given = np.arange(len(curve))
        left = every[:, None] - given[None, :]
        sums = np.where(left >= 0, least[np.maximum(left, 0)] + curve[None, :], np.inf)
        taken = sums.argmin(axis=1)
        least = sums[every, taken]
        picked.append((taken, better))
    choices, left_gpus = [], gpus
    for taken, better in reversed(picked):
        given_gpus = int(taken[left_gpus])
        choices.append(int(better[given_gpus]))
        left_gpus -= given_gpus
    return float(least[gpus]), choices[::-1]
