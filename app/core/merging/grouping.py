"""Jobs in given pairs, and the rest alone: what they cost by size, and the best sizes for all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from app.core.merging.problem import Floats, Group, Ints, Mode, Problem
from app.core.merging.sizes import best_sizes

Pairs = tuple[int, ...]  # places of pairs in the problem, no job twice


@dataclass(frozen=True, slots=True)
class Rows:
    """Costs of groups by size, 0 GPUs first: (singles, 1 + A) and (pairs, 1 + A).

    A pair may fall apart, where that costs less: `ways` (pairs, A) is 0 for merged, 1 for its first job alone while the
    other waits, 2 for the other way round.
    """

    singles: Floats
    pairs: Floats
    ways: Ints

    def of(self, singles: Iterable[int], pairs: Iterable[int]) -> Floats:
        """The rows of these jobs and pairs, in this order."""
        return np.concatenate([self.singles[list(singles)], self.pairs[list(pairs)]])


def rows_of(problem: Problem) -> Rows:
    """The rows of every job and every pair of the problem."""
    one, other, waiting = problem.first, problem.second, problem.waiting
    options = np.stack(
        [
            problem.merged,
            problem.alone[one] + waiting[other][:, None],
            problem.alone[other] + waiting[one][:, None],
        ]
    )
    return Rows(
        singles=np.column_stack([waiting, problem.alone]),
        pairs=np.column_stack([waiting[one] + waiting[other], options.min(axis=0)]),
        ways=options.argmin(axis=0),
    )


def in_pairs(problem: Problem, pairs: Pairs) -> np.ndarray:
    """(N,) which jobs are in one of these pairs."""
    paired = np.zeros(problem.jobs, dtype=bool)
    chosen = list(pairs)
    paired[problem.first[chosen]] = True
    paired[problem.second[chosen]] = True
    return paired


def sized(problem: Problem, rows: Rows, pairs: Pairs) -> tuple[float, list[Group]]:
    """The best sizes for these pairs and all other jobs alone. A pair the GPUs do not suffice for falls apart."""
    singles = np.flatnonzero(~in_pairs(problem, pairs))
    cost, columns = best_sizes(rows.of(singles, pairs), problem.sizes, problem.gpus)
    gpus = np.concatenate([[0], problem.sizes])[columns]
    groups = [Group((int(job),), int(gpus[row])) for row, job in enumerate(singles)]
    for place, pair in enumerate(pairs, len(singles)):
        groups += _groups_of_pair(problem, rows, pair, int(columns[place]), int(gpus[place]))
    return cost, groups


def _groups_of_pair(problem: Problem, rows: Rows, pair: int, column: int, gpus: int) -> list[Group]:
    one, other = int(problem.first[pair]), int(problem.second[pair])
    way = int(rows.ways[pair, column - 1]) if column else 3
    if way == 0:
        return [Group((one, other), gpus, Mode(int(problem.modes[pair, column - 1])))]
    return [Group((one,), gpus if way == 1 else 0), Group((other,), gpus if way == 2 else 0)]
