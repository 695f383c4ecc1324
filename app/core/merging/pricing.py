"""What merging costs where GPUs have a price and jobs have deadlines (equations 7-13, for rented GPUs).

Ymir shares out a fixed cluster. Here a job alone gets its own GPUs, at a price; so a pair is held against what both
would do apart, in time and in money:

- A pair costs the sum of both jobs' slowdowns, finish / time alone, as every job does by itself, one more for each
  that misses its deadline; and `money_weight` times its share of what both would cost apart.
- A merge is not dearer than both apart, unless apart a deadline is missed that the merge keeps.
- A merge makes no job late that would be in time, or later that would be late.
- What is known of times are predictions. A merge is made only if all of this holds, and it still costs less than both
  apart, wherever between its bounds each job's time lies (`merging.spans`): at every combination of both jobs' ends.
- TranWt (equation 12's filter): the sum of completion times merged is at most that of both apart, on GPUs of their
  own or, the shorter first, one after the other on those of the merge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from app.core.merging.problem import Floats, Ints, Mode, Problem

LATE = 1.0  # what a missed deadline counts as, in times alone


@dataclass(frozen=True, slots=True)
class PricedJobs:
    """N jobs that could be merged, and what each would do alone. Milliseconds, and micro-dollars per GPU and hour.

    `times_ms`: (N, A) of training left on each size, infinite where it may not have or nobody knows that size. `own`:
    (N,) the column of the size that it gets alone. `least`, `most`: (N,) between which shares of these times
    it really has left. `whole_ms`: (N,) its time alone from first step to last.
    `begins_ms`: (N,) from now until it trains, 0 for those that do. `slack_ms`: (N,) from now to its deadline.
    `gpu_micros`: (N,) the price of the GPUs that it would get. `running`: (N,) has a place, `begun`: (N,) has progress
    of its own: either may only lead in turn. `joins`: (N, N) which may train side by side: alike in all, and without
    progress. `most_gpus`: (N,) GPUs that it may use by itself; side by side a pair may use those of both. `gains`:
    (N, N) by how much the row's job helps the column's in turn, `gains_together`: side by side; `may`: (N, N) which may
    be merged at all; `in_turn`: whether any may, one after the other.
    """

    times_ms: Floats
    own: Ints
    least: Floats
    most: Floats
    whole_ms: Floats
    begins_ms: Floats
    slack_ms: Floats
    gpu_micros: Floats
    running: np.ndarray
    begun: np.ndarray
    joins: np.ndarray
    most_gpus: Ints
    gains: Floats
    gains_together: Floats
    may: np.ndarray
    switch_ms: float
    money_weight: float
    in_turn: bool = True


@dataclass(frozen=True, slots=True)
class Course:
    """(P, A) each: when the jobs of a pair end from now, and what both cost (micro-dollar-ms per hour)."""

    first_ms: Floats
    second_ms: Floats
    money: Floats


def priced_problem(market: PricedJobs, sizes: Ints, gpus: int, *, wait_cost: float) -> Problem:
    """The problem of this market. Pairs that no mode helps for sure, or that cost more, are left out."""
    apart = _alone(market)
    alone = np.full(market.times_ms.shape, np.inf)
    alone[np.arange(len(market.own)), market.own] = apart
    first, second = _candidates(market)
    costs = _saving_costs(market, sizes, first, second)
    helps = np.isfinite(costs).any(axis=(0, 2))
    first, second, costs = first[helps], second[helps], costs[:, helps]
    costs = np.where(_outlives(market, sizes, first, second), costs, np.inf)
    best = costs.argmin(axis=0)
    merged = np.take_along_axis(costs, best[None], axis=0)[0]
    helps = np.isfinite(merged).any(axis=1)
    return Problem(
        sizes=sizes,
        alone=alone,
        waiting=wait_cost + alone.min(axis=1),
        first=first[helps],
        second=second[helps],
        merged=merged[helps],
        modes=(best + Mode.FIRST_BEFORE_SECOND)[helps],
        gpus=gpus,
    )


def course_of(market: PricedJobs, sizes: Ints, first: int, second: int, mode: Mode) -> Course:
    """What was counted on for one pair."""
    one, other = np.array([first]), np.array([second])
    if mode == Mode.FIRST_BEFORE_SECOND:
        return _in_turn(market, sizes, one, other)
    return _turned(market, sizes, one, other) if mode == Mode.SECOND_BEFORE_FIRST else _joint(market, sizes, one, other)


def _alone(market: PricedJobs) -> Floats:
    """(N,): what each job costs by itself, on the GPUs that it gets."""
    alone_ms = _alone_ms(market)
    return alone_ms / market.whole_ms + LATE * (alone_ms > market.slack_ms) + market.money_weight


def _alone_ms(market: PricedJobs) -> Floats:
    found: Floats = market.begins_ms + market.times_ms[np.arange(len(market.own)), market.own]
    return found


def _saving_costs(market: PricedJobs, sizes: Ints, first: Ints, second: Ints) -> Floats:
    """(3, P, A): what each pair costs in turn, the other way round, and side by side; infinite where it is not allowed,
    or costs no less than both alone."""
    alone = _alone(market)
    apart = _apart(market, sizes, first, second, _alone_ms(market))
    courses = (
        _in_turn(market, sizes, first, second),
        _turned(market, sizes, first, second),
        _joint(market, sizes, first, second),
    )
    costs = np.stack([_cost(market, first, second, one, apart) for one in courses])
    return np.where(costs < (alone[first] + alone[second])[:, None], costs, np.inf)


def _outlives(market: PricedJobs, sizes: Ints, first: Ints, second: Ints) -> np.ndarray:
    """(3, P, A): whether the pair still saves where each of its jobs ends as early, or as late, as it may."""
    bounds, count = _at_bounds(market), len(market.own)
    outlives = np.ones((3, len(first), len(sizes)), dtype=bool)
    for one, other in product((0, count), repeat=2):
        outlives &= np.isfinite(_saving_costs(bounds, sizes, first + one, second + other))
    return outlives


def _at_bounds(market: PricedJobs) -> PricedJobs:
    """The market with every job twice: as it is if it ends as early as it may, then as late."""
    share = np.concatenate([market.least, market.most])
    own_ms = market.times_ms[np.arange(len(market.own)), market.own]
    sure = np.ones(len(share))
    return replace(
        market,
        times_ms=_twice(market.times_ms) * share[:, None],
        own=_twice(market.own),
        least=sure,
        most=sure,
        whole_ms=_twice(market.whole_ms) + _twice(own_ms) * (share - 1),
        begins_ms=_twice(market.begins_ms),
        slack_ms=_twice(market.slack_ms),
        gpu_micros=_twice(market.gpu_micros),
        running=_twice(market.running),
        begun=_twice(market.begun),
        most_gpus=_twice(market.most_gpus),
        joins=np.tile(market.joins, (2, 2)),
        gains=np.tile(market.gains, (2, 2)),
        gains_together=np.tile(market.gains_together, (2, 2)),
        may=np.tile(market.may, (2, 2)),
    )


def _twice(of_each: np.ndarray) -> np.ndarray:
    return np.concatenate([of_each, of_each])


def _candidates(market: PricedJobs) -> tuple[Ints, Ints]:
    first, second = np.triu_indices(len(market.own), 1)
    allowed = market.may[first, second] & ~(market.running[first] & market.running[second])
    return first[allowed], second[allowed]


def _apart(market: PricedJobs, sizes: Ints, first: Ints, second: Ints, alone_ms: Floats) -> Course:
    """Each on its own GPUs at once."""
    spent = _spent(market.gpu_micros * sizes[market.own], market.times_ms[np.arange(len(market.own)), market.own])
    shape = (len(first), len(sizes))
    return Course(
        np.broadcast_to(alone_ms[first][:, None], shape),
        np.broadcast_to(alone_ms[second][:, None], shape),
        np.broadcast_to((spent[first] + spent[second])[:, None], shape),
    )


def _in_turn(market: PricedJobs, sizes: Ints, early: Ints, late: Ints) -> Course:
    """The later one starts from the earlier one's adapter, on its GPUs."""
    shortened = market.times_ms[late] / (1 + market.gains[early, late][:, None])
    early_ms = market.begins_ms[early][:, None] + market.times_ms[early]
    hourly = market.gpu_micros[early][:, None] * sizes
    money = _spent(hourly, market.times_ms[early] + market.switch_ms + shortened)
    late_ms = np.where((market.running | market.begun)[late][:, None], np.inf, early_ms + market.switch_ms + shortened)
    fits = (sizes <= np.minimum(market.most_gpus[early], market.most_gpus[late])[:, None]) & market.in_turn
    return Course(early_ms, np.where(fits, late_ms, np.inf), money)


def _turned(market: PricedJobs, sizes: Ints, first: Ints, second: Ints) -> Course:
    course = _in_turn(market, sizes, second, first)
    return Course(course.second_ms, course.first_ms, course.money)


def _joint(market: PricedJobs, sizes: Ints, first: Ints, second: Ints) -> Course:
    """Equation 4: the steps of both, shortened by the mean gain; both end together."""
    gain = 1 + ((market.gains_together[first, second] + market.gains_together[second, first]) / 2)[:, None]
    together = (market.times_ms[first] + market.times_ms[second]) / gain
    begins = np.maximum(market.begins_ms[first], market.begins_ms[second])[:, None]
    price = np.maximum(market.gpu_micros[first], market.gpu_micros[second])[:, None]
    may = market.joins[first, second][:, None]
    may = may & (sizes <= (market.most_gpus[first] + market.most_gpus[second])[:, None])
    ends = np.where(may, begins + together, np.inf)
    return Course(ends, ends, _spent(price * sizes, together))


def _spent(hourly: Floats, ms: Floats) -> Floats:
    """What costs nothing costs nothing for ever, too."""
    with np.errstate(invalid="ignore"):
        found: Floats = np.where(hourly == 0, 0.0, hourly * ms)
    return found


def _cost(market: PricedJobs, first: Ints, second: Ints, merged: Course, apart: Course) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):  # infinite on both sides: not allowed anyway
        slack_one, slack_other = market.slack_ms[first][:, None], market.slack_ms[second][:, None]
        in_time = (merged.first_ms <= slack_one) & (merged.second_ms <= slack_other)
        late_apart = (apart.first_ms > slack_one) | (apart.second_ms > slack_other)
        not_later = (merged.first_ms <= np.maximum(slack_one, apart.first_ms)) & (
            merged.second_ms <= np.maximum(slack_other, apart.second_ms)
        )
        allowed = not_later & ((merged.money <= apart.money) | (late_apart & in_time))
        allowed &= _waits_less(market, first, second, merged, apart)
        slowdown = (
            merged.first_ms / market.whole_ms[first][:, None] + merged.second_ms / market.whole_ms[second][:, None]
        )
        lateness = LATE * ((merged.first_ms > slack_one).astype(float) + (merged.second_ms > slack_other))
        share = 2 * market.money_weight * merged.money / apart.money
        share = np.where((merged.money == 0) & (apart.money == 0), 2 * market.money_weight, share)  # as dear as apart
        cost = slowdown + lateness + share
    return np.where(allowed & np.isfinite(cost), cost, np.inf)


def _waits_less(market: PricedJobs, first: Ints, second: Ints, merged: Course, apart: Course) -> np.ndarray:
    """TranWt of at least one."""
    one, other = market.times_ms[first], market.times_ms[second]
    in_a_row = 2 * np.minimum(one, other) + np.maximum(one, other)
    total = merged.first_ms + merged.second_ms
    answer: np.ndarray = (total <= in_a_row) | (total <= apart.first_ms + apart.second_ms)
    return answer
