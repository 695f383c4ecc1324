"""The same choice as an integer program, solved by HiGHS to the end: the reference for the fast solver."""

from __future__ import annotations

import numpy as np

from app.core.merging.problem import Group, Ints, Merging, Mode, Problem


def solve_exactly(problem: Problem, *, time_limit_s: float, gap: float = 1e-4) -> Merging | None:
    """A choice that is proven to be within `gap` of the best, or the best that was found in time; None: none was."""
    columns = _columns(problem)
    owners, members = columns["owners"], columns["members"]
    count = len(columns["costs"])
    rows = np.concatenate([members, np.full(count, problem.jobs)])
    places = np.concatenate([owners, np.arange(count)])
    values = np.concatenate([np.ones(len(members)), columns["gpus"]])
    from scipy.optimize import Bounds, LinearConstraint, milp  # loads for half a second: not when a server starts
    from scipy.sparse import csr_matrix

    matrix = csr_matrix((values, (rows, places)), shape=(problem.jobs + 1, count))
    least = np.concatenate([np.ones(problem.jobs), [0]])
    most = np.concatenate([np.ones(problem.jobs), [problem.gpus]])
    answer = milp(
        columns["costs"],
        constraints=LinearConstraint(matrix, least, most),
        integrality=np.ones(count),
        bounds=Bounds(0, 1),
        options={"time_limit": time_limit_s, "mip_rel_gap": gap},
    )
    if answer.x is None:
        return None
    chosen = np.flatnonzero(answer.x > 0.5)
    groups = tuple(_group(problem, columns, int(one)) for one in chosen)
    return Merging(groups, float(columns["costs"][chosen].sum()), float(answer.mip_dual_bound))


def _columns(problem: Problem) -> dict[str, Ints]:
    """One variable per job or pair and size; a pair on a size that costs no less than a smaller one is left out."""
    jobs, sizes = problem.jobs, len(problem.sizes)
    solo_costs = np.column_stack([problem.waiting, problem.alone]).ravel()
    solo_gpus = np.tile(np.concatenate([[0], problem.sizes]), jobs)
    solo_jobs = np.repeat(np.arange(jobs), sizes + 1)
    least = np.minimum.accumulate(problem.merged, axis=1)
    keep = np.isfinite(problem.merged)
    keep[:, 1:] &= problem.merged[:, 1:] < least[:, :-1]
    pair, size = np.nonzero(keep)
    pair_places = np.arange(len(pair)) + len(solo_costs)
    return {
        "costs": np.concatenate([solo_costs, problem.merged[pair, size]]),
        "gpus": np.concatenate([solo_gpus, problem.sizes[size]]),
        "owners": np.concatenate([np.arange(len(solo_costs)), pair_places, pair_places]),
        "members": np.concatenate([solo_jobs, problem.first[pair], problem.second[pair]]),
        "solo_jobs": solo_jobs,
        "pair": pair,
        "size": size,
    }


def _group(problem: Problem, columns: dict[str, Ints], chosen: int) -> Group:
    gpus = int(columns["gpus"][chosen])
    place = chosen - len(columns["solo_jobs"])
    if place < 0:
        return Group((int(columns["solo_jobs"][chosen]),), gpus)
    pair, size = int(columns["pair"][place]), int(columns["size"][place])
    mode = Mode(int(problem.modes[pair, size]))
    return Group((int(problem.first[pair]), int(problem.second[pair])), gpus, mode)
