"""Small problems to choose in, made up and drawn."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st

from app.core.merging.problem import Group, Mode, Problem

NEVER = float("inf")


def problem(
    alone: list[list[float]],
    pairs: dict[tuple[int, int], list[float]] | None = None,
    *,
    gpus: int,
    wait: float = 6.0,
    mode: Mode = Mode.TOGETHER,
) -> Problem:
    """Jobs with these costs alone on 1, 2, 3 ... GPUs, and pairs with these."""
    known = pairs or {}
    width = len(alone[0])
    merged = np.array(list(known.values()), dtype=float).reshape(len(known), width)
    return Problem(
        sizes=np.arange(1, width + 1),
        alone=np.array(alone, dtype=float),
        waiting=np.full(len(alone), wait),
        first=np.array([one for one, _ in known], dtype=np.int64),
        second=np.array([other for _, other in known], dtype=np.int64),
        merged=merged,
        modes=np.full(merged.shape, int(mode)),
        gpus=gpus,
    )


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Up to five jobs on up to four GPUs."""
    jobs, width = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    costs = st.lists(st.floats(0.1, 9.0), min_size=width, max_size=width)
    alone = draw(st.lists(costs, min_size=jobs, max_size=jobs))
    couples = list(itertools.combinations(range(jobs), 2))
    chosen = draw(st.lists(st.sampled_from(couples), unique=True)) if couples else []
    some = st.lists(st.one_of(st.floats(0.1, 18.0), st.just(NEVER)), min_size=width, max_size=width)
    return problem(alone, {couple: draw(some) for couple in chosen}, gpus=draw(st.integers(0, 4)))


def least_cost(problem: Problem) -> float:
    """By trying everything."""
    place = {(int(i), int(k)): number for number, (i, k) in enumerate(zip(problem.first, problem.second, strict=True))}
    options = [0, *(int(size) for size in problem.sizes)]

    def best(left: tuple[int, ...], gpus: int) -> float:
        if not left:
            return 0.0
        job, rest = left[0], left[1:]
        found = NEVER
        for column, size in enumerate(options):
            if size > gpus:
                continue
            cost = float(problem.waiting[job] if column == 0 else problem.alone[job, column - 1])
            found = min(found, cost + best(rest, gpus - size))
            for other in rest:
                pair = place.get((job, other))
                if pair is not None and column:
                    others = tuple(one for one in rest if one != other)
                    found = min(found, float(problem.merged[pair, column - 1]) + best(others, gpus - size))
        return found

    return best(tuple(range(problem.jobs)), problem.gpus)


def merged_of(groups: tuple[Group, ...]) -> set[tuple[int, ...]]:
    return {group.jobs for group in groups if len(group.jobs) == 2}
