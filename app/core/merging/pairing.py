"""Who is paired with whom, when GPUs have a price: a relaxed matching, made whole.

A pair that is chosen by one side only costs half; so the relaxation is an assignment problem, whose least cost bounds
every matching from below. Its cycles are cut into pairs, the cheapest way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.core.merging.problem import Floats, Ints, Problem

_NEVER = 1e12  # costs more than any choice


@dataclass(frozen=True, slots=True)
class PairingGroup:
    """Jobs that may be paired among each other, and with nobody else: one assignment problem.

    `jobs`: (n,) places in the problem; `pairs`: places of its pairs; `row`, `column`: where these stand in the family.
    """

    jobs: Ints
    pairs: Ints
    row: Ints
    column: Ints


def families_of(problem: Problem) -> list[PairingGroup]:
    """The connected components of the pairs. A job that is in no pair is in no family."""
    from scipy.sparse import coo_matrix  # loads for half a second: not when a server starts
    from scipy.sparse.csgraph import connected_components

    shape = (problem.jobs, problem.jobs)
    graph = coo_matrix((np.ones(len(problem.first)), (problem.first, problem.second)), shape=shape)
    count, label = connected_components(graph, directed=False)
    place = np.zeros(problem.jobs, dtype=np.int64)
    found = []
    for one in range(count):
        jobs = np.flatnonzero(label == one)
        if len(jobs) < 2:
            continue
        place[jobs] = np.arange(len(jobs))
        pairs = np.flatnonzero(label[problem.first] == one)
        found.append(PairingGroup(jobs, pairs, place[problem.first[pairs]], place[problem.second[pairs]]))
    return found


def match(family: PairingGroup, alone: Floats, merged: Floats) -> tuple[float, list[int]]:
    """A bound on the family's least cost, and the pairs (places in the problem) of a good matching.

    `alone`: (N,) the least cost of each job by itself, `merged`: (P,) of each pair, both of the whole problem.
    """
    size = len(family.jobs)
    cost = np.full((size, size), _NEVER)
    half = np.minimum(merged[family.pairs], _NEVER) / 2
    cost[family.row, family.column] = half
    cost[family.column, family.row] = half
    np.fill_diagonal(cost, alone[family.jobs])
    from scipy.optimize import linear_sum_assignment

    _, mate = linear_sum_assignment(cost)
    bound = float(cost[np.arange(size), mate].sum())
    number = np.full((size, size), -1)
    number[family.row, family.column] = number[family.column, family.row] = family.pairs
    pairs: list[int] = []
    for cycle in _cycles(mate):
        pairs += [
            int(number[one, other])
            for one, other in _cut(cycle, cost)
            if 2 * cost[one, other] < cost[one, one] + cost[other, other]
        ]
    return bound, pairs


def _cycles(mate: Ints) -> list[list[int]]:
    seen = np.zeros(len(mate), dtype=bool)
    cycles = []
    for start in range(len(mate)):
        if seen[start] or mate[start] == start:
            continue
        cycle, at = [start], int(mate[start])
        while at != start:
            cycle.append(at)
            at = int(mate[at])
        seen[cycle] = True
        cycles.append(cycle)
    return cycles


def _cut(cycle: list[int], cost: Floats) -> list[tuple[int, int]]:
    """The cheapest pairs of neighbours; of an odd cycle one job stays alone."""
    count = len(cycle)
    ways = []
    for start in range(2 if count % 2 == 0 else count):
        turned = cycle[start:] + cycle[:start]
        pairs = list(zip(turned[0 : count - 1 : 2], turned[1:count:2], strict=True))
        left = [cost[turned[-1], turned[-1]]] if count % 2 else []
        ways.append((sum(2 * cost[pair] for pair in pairs) + sum(left), pairs))
    return min(ways, key=lambda way: way[0])[1]
