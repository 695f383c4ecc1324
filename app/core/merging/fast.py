"""The merger's own solver: a price per GPU, matchings at that price, exact sizes; with a certificate.

With a price in place of the limit (Lagrange), groups are independent of each other but for the matching, whose
relaxation bounds the best choice from below, at every price. Bisection finds the price at which the GPUs are just used
up. The pairings met on the way, and a few more of slightly bent costs, get the best sizes under the limit itself; then
the best of them takes what the others do better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from app.core.merging.grouping import Pairs, in_pairs, rows_of, sized
from app.core.merging.pairing import PairingGroup, families_of, match
from app.core.merging.problem import Floats, Merging, Problem
from app.core.merging.recombine import recombined
from app.core.merging.sizes import cost_curve

PRICES = 14  # bisections
BENT = 12  # pairings of bent costs
_BEND = 0.02
_GOLDEN = 0.6180339887498949  # its multiples, without their whole parts, are spread evenly


def solve(problem: Problem, *, good_enough: float = 0.005) -> Merging:
    """A good choice, and how far from the best it can be at most. The search ends when that is `good_enough`."""
    if problem.jobs == 0:
        return Merging((), 0.0, 0.0)
    prices, search = _Prices(problem), _Search(problem)
    found, bound = prices.pairings()
    others = (prices.bent(turn) for turn in range(1, BENT + 1))
    for pairs in chain(reversed(found), others):
        search.add(pairs)
        if search.least <= bound * (1 + good_enough):
            break
    cost, groups = sized(problem, search.rows, search.best)
    return Merging(tuple(groups), cost, min(bound, cost))


def solve_apart(problem: Problem) -> Merging:
    """Nobody is merged, all get the best sizes: what is left when there is no time to merge."""
    cost, groups = sized(problem, rows_of(problem), ())
    return Merging(tuple(groups), cost, float("-inf"))


class _Search:
    """The best pairing so far, and whatever those that follow do better in parts."""

    def __init__(self, problem: Problem) -> None:
        self.rows = rows_of(problem)
        self.best: Pairs = ()
        self.least = float("inf")
        self._problem = problem
        self._seen = set[Pairs]()

    def add(self, pairs: Pairs) -> None:
        """The first is taken as it is; from every other one the parts that cost less."""
        if pairs in self._seen:
            return
        self._seen.add(pairs)
        if len(self._seen) == 1:
            self.best, self.least = pairs, self._cost(pairs)
            return
        cost, mixed = recombined(self._problem, self.rows, self.best, pairs)
        if cost < self.least:
            self.best, self.least = mixed, cost

    def _cost(self, pairs: Pairs) -> float:
        singles = np.flatnonzero(~in_pairs(self._problem, pairs))
        problem = self._problem
        return float(cost_curve(self.rows.of(singles, pairs), problem.sizes, problem.gpus)[-1])


@dataclass(frozen=True, slots=True)
class _Matched:
    """What was chosen at a price: `relaxed` bounds every choice at that price, `gpus` is what this one uses."""

    pairs: Pairs
    relaxed: float
    gpus: int


class _Prices:
    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._families: Sequence[PairingGroup] = families_of(problem)
        self._alone = np.column_stack([problem.waiting, problem.alone])
        self._weights = np.concatenate([[0], problem.sizes])
        self._price = 0.0

    def pairings(self) -> tuple[list[Pairs], float]:
        """The pairings that bisection meets, the last at the best price, and the highest bound on the cost of any."""
        low, high = 0.0, 2 * float(self._problem.waiting.max()) + 1.0  # no pair is worth more per GPU
        found, bound = list[Pairs](), float("-inf")
        for _ in range(PRICES):
            price = (low + high) / 2
            seen = self._at(price)
            found.append(seen.pairs)
            bound = max(bound, seen.relaxed - price * self._problem.gpus)
            low, high = (price, high) if seen.gpus > self._problem.gpus else (low, price)
        self._price = (low + high) / 2
        return found, bound

    def bent(self, turn: int) -> Pairs:
        """Another pairing at the price that bisection found."""
        return self._at(self._price, turn).pairs

    def _at(self, price: float, turn: int = 0) -> _Matched:
        """The matching at a price. `turn`: bends the pairs' costs by up to 2 %, each turn in another way."""
        problem = self._problem
        solo, pair = self._alone + price * self._weights, problem.merged + price * problem.sizes
        solo_least, pair_least = solo.min(axis=1), pair.min(axis=1, initial=np.inf)
        if turn:
            pair_least = pair_least * _bends(len(pair_least), turn)
        relaxed, pairs = float(solo_least.sum()), list[int]()
        for family in self._families:
            bound, chosen = match(family, solo_least, pair_least)
            relaxed += bound - float(solo_least[family.jobs].sum())
            pairs += chosen
        picked = tuple(sorted(pairs))
        solo_gpus = self._weights[solo[~in_pairs(problem, picked)].argmin(axis=1)]
        pair_gpus = problem.sizes[pair[list(picked)].argmin(axis=1)] if picked else np.zeros(0)
        return _Matched(picked, relaxed, int(solo_gpus.sum() + pair_gpus.sum()))


def _bends(count: int, turn: int) -> Floats:
    spread = (np.arange(1, count + 1) * _GOLDEN * (turn + _GOLDEN)) % 1.0
    return np.asarray(1 + _BEND * (2 * spread - 1), dtype=np.float64)
