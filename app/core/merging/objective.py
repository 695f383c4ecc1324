"""What each way of training costs: Ymir's finish-time fairness, with its signs and sums mended.

The paper minimises the sum of T_fair / T_a (equations 6-7), which is best at zero GPUs for everybody. Here it is the
slowdown T_a / T_fair, and a job that gets nothing now costs `wait_cost`. A pair counts for two jobs, so its slowdown
counts twice, against a fair share of two jobs' GPUs, divided by the transfer weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.core.merging.problem import Floats, Ints, Mode, Problem


@dataclass(frozen=True, slots=True)
class Workload:
    """N waiting jobs. Seconds.

    `times_s`: (N, A) run time of each job alone on each size. `fair_s`: (N,) on its fair share of the GPUs;
    `fair_pair_s`: (N,) on twice that. `bases`: (N,) a number per base model and all else that must be equal to merge.
    `gains`: (N, N) by how much training on the row's job first shortens the column's: 0.5 means steps / 1.5.
    `may_share`: (N,) jobs that allow it. `may_join`: (N,) those without progress yet, which may train side by side.
    """

    times_s: Floats
    fair_s: Floats
    fair_pair_s: Floats
    bases: Ints
    gains: Floats
    may_share: np.ndarray
    may_join: np.ndarray


def problem_of(workload: Workload, sizes: Ints, gpus: int, *, wait_cost: float) -> Problem:
    """The problem of this workload. Pairs that no mode would help are left out."""
    first, second = _candidates(workload)
    before, after, joint = _mode_costs(workload, first, second)
    costs = np.stack([before, after, joint])
    best = costs.argmin(axis=0)
    merged = np.take_along_axis(costs, best[None], axis=0)[0]
    helps = np.isfinite(merged).any(axis=1)
    return Problem(
        sizes=sizes,
        alone=workload.times_s / workload.fair_s[:, None],
        waiting=np.full(len(workload.fair_s), wait_cost),
        first=first[helps],
        second=second[helps],
        merged=merged[helps],
        modes=(best + Mode.FIRST_BEFORE_SECOND)[helps],
        gpus=gpus,
    )


def _candidates(workload: Workload) -> tuple[Ints, Ints]:
    """Pairs of the same base that both allow sharing (equations 10 and 12)."""
    first, second = np.triu_indices(len(workload.fair_s), 1)
    allowed = (workload.bases[first] == workload.bases[second]) & workload.may_share[first] & workload.may_share[second]
    return first[allowed], second[allowed]


def _mode_costs(workload: Workload, first: Ints, second: Ints) -> tuple[Floats, Floats, Floats]:
    """(P, A) each: first before second, second before first, side by side (the last for jobs without progress)."""
    times, gains = workload.times_s, workload.gains
    apart = 2 * np.minimum(times[first], times[second]) + np.maximum(times[first], times[second])
    before = _in_turn(workload, first, second, apart)
    after = _in_turn(workload, second, first, apart)
    gain = 1 + ((gains[first, second] + gains[second, first]) / 2)[:, None]
    together = (times[first] + times[second]) / gain
    fair = (workload.fair_pair_s[first] + workload.fair_pair_s[second])[:, None] / gain
    joint = _weighed(2 * together / fair, apart, 2 * together)
    joint[~(workload.may_join[first] & workload.may_join[second])] = np.inf
    return before, after, joint


def _in_turn(workload: Workload, early: Ints, late: Ints, apart: Floats) -> Floats:
    gain = 1 + workload.gains[early, late][:, None]
    shortened = workload.times_s[late] / gain
    fair = workload.fair_pair_s[late][:, None] / gain
    return _weighed(2 * shortened / fair, apart, 2 * workload.times_s[early] + shortened)


def _weighed(slowdown: Floats, apart: Floats, merged: Floats) -> Floats:
    """Divided by the transfer weight (TranWt): the sum of both jobs' completion times apart, the shorter first, over
    that when merged. A weight below one means that merging makes them wait: not allowed."""
    weight = apart / merged
    return np.where(weight >= 1, slowdown / weight, np.inf)
