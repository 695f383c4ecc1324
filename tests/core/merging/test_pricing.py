"""The merger with prices: what two jobs do apart, what they do as one, and which of both is allowed."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.merging.fast import solve
from app.core.merging.pricing import PricedJobs, course_of, priced_problem
from app.core.merging.problem import Mode

SIZES = np.array([1, 2])
HOUR = 3_600_000.0
LONG = 100 * HOUR


def market(times: list[list[float]], gain: float, **changes: Any) -> PricedJobs:
    """Jobs of so many milliseconds on one and on two GPUs, that help each other so much and are in no hurry."""
    count = len(times)
    values: dict[str, Any] = {
        "times_ms": np.array(times, dtype=float),
        "own": np.zeros(count, dtype=np.int64),
        "least": np.ones(count),
        "most": np.ones(count),
        "whole_ms": np.array([one[0] for one in times], dtype=float),
        "begins_ms": np.zeros(count),
        "slack_ms": np.full(count, LONG),
        "gpu_micros": np.full(count, 740_000.0),
        "running": np.zeros(count, dtype=bool),
        "begun": np.zeros(count, dtype=bool),
        "joins": np.ones((count, count), dtype=bool),
        "most_gpus": np.ones(count, dtype=np.int64),
        "gains": np.full((count, count), gain),
        "gains_together": np.full((count, count), gain),
        "may": ~np.eye(count, dtype=bool),
        "switch_ms": 0.0,
        "money_weight": 0.5,
    }
    return PricedJobs(**(values | changes))


def chosen(one: PricedJobs, gpus: int = 100) -> list[tuple[tuple[int, ...], int, Mode]]:
    groups = solve(priced_problem(one, SIZES, gpus, wait_cost=6.0)).groups
    return sorted((group.jobs, group.gpus, group.mode) for group in groups)


EQUAL = [[HOUR, 0.6 * HOUR], [HOUR, 0.6 * HOUR]]
APART = [((0,), 1, Mode.ALONE), ((1,), 1, Mode.ALONE)]


def test_side_by_side_when_both_gain() -> None:
    """Two hours of work on two GPUs, a half quicker: both are done in 48 minutes, for less than apart."""
    assert chosen(market(EQUAL, 0.5)) == [((0, 1), 2, Mode.TOGETHER)]
    assert chosen(market(EQUAL, 0.1)) == APART  # 1.2 h / 1.1: later than apart


def test_never_dearer_unless_a_deadline_needs_it() -> None:
    """Where one job's GPUs cost more, a merge that saves 4 % of the time costs a tenth more: it is made only where
    apart a deadline is missed, and merged it is kept."""
    dear = np.array([740_000.0, 1_000_000.0])
    assert chosen(market(EQUAL, 0.25, gpu_micros=dear)) == APART
    need = np.array([0.98 * HOUR, LONG])
    assert chosen(market(EQUAL, 0.25, gpu_micros=dear, slack_ms=need)) == [((0, 1), 2, Mode.TOGETHER)]
    in_vain = np.array([0.95 * HOUR, LONG])
    assert chosen(market(EQUAL, 0.25, gpu_micros=dear, slack_ms=in_vain)) == APART


def test_on_machines_that_cost_nothing_time_alone_counts() -> None:
    """GPUs of one's own are free: a size that nobody may have costs nothing either, and a merge is as dear as none."""
    free = np.zeros(2)
    assert chosen(market(EQUAL, 0.5, gpu_micros=free)) == [((0, 1), 2, Mode.TOGETHER)]
    assert chosen(market(EQUAL, 0.1, gpu_micros=free)) == APART
    soon = [[0.1 * HOUR, np.inf], [10 * HOUR, 6 * HOUR]]
    running = np.array([True, False])
    assert chosen(market(soon, 0.3, running=running, gpu_micros=free)) == [((0, 1), 1, Mode.FIRST_BEFORE_SECOND)]
    dearer = np.array([740_000.0, 0.0])  # behind one that is paid for, a free job would cost something
    assert chosen(market(soon, 0.01, running=running, gpu_micros=dearer)) == APART


def test_behind_one_that_is_nearly_done() -> None:
    """A job starts where one that trains ends, if that ends soon beside what it gains."""
    soon = market([[0.1 * HOUR, np.inf], [10 * HOUR, 6 * HOUR]], 0.3, running=np.array([True, False]))
    assert chosen(soon) == [((0, 1), 1, Mode.FIRST_BEFORE_SECOND)]
    course = course_of(soon, SIZES, 0, 1, Mode.FIRST_BEFORE_SECOND)
    assert course.second_ms[0, 0] == pytest.approx(0.1 * HOUR + 10 * HOUR / 1.3)
    late = market([[9 * HOUR, np.inf], [10 * HOUR, 6 * HOUR]], 0.3, running=np.array([True, False]))
    assert chosen(late) == APART


@pytest.mark.parametrize(
    ("least", "most", "made"),
    [
        ((1.0, 1.0), (1.0, 1.0), True),
        ((0.5, 0.8), (2.0, 1.25), True),
        ((1.0, 1.0), (60.0, 1.0), False),
        ((1.0, 0.01), (1.0, 1.0), False),
        ((0.5, 0.2), (9.0, 1.25), False),
        ((0.1, 1.0), (1.0, 9.0), True),
    ],
    ids=["sure", "nearly sure", "a late lead", "a short companion", "both", "a short lead"],
)
def test_a_gain_must_outlive_the_bounds(least: tuple[float, float], most: tuple[float, float], made: bool) -> None:
    """A job of ten hours starts where one ends that has six minutes left, and saves 2.3 hours: not if those six minutes
    may be six hours, nor if it may be so short itself that it waits for longer than it saves."""
    bounds = {"least": np.array(least), "most": np.array(most)}
    times = [[0.1 * HOUR, np.inf], [10 * HOUR, 6 * HOUR]]
    found = chosen(market(times, 0.3, running=np.array([True, False]), **bounds))
    assert found == ([((0, 1), 1, Mode.FIRST_BEFORE_SECOND)] if made else APART)


def test_a_surer_partner_is_taken_instead() -> None:
    """Of two that could lead, the one that helps more but may take for hours is left out before anything is chosen."""
    gains = np.array([[0.0, 0.0, 0.5], [0.0, 0.0, 0.3], [0.0, 0.0, 0.0]])
    times = [[0.1 * HOUR, np.inf], [0.1 * HOUR, np.inf], [10 * HOUR, 6 * HOUR]]
    leads = {"gains": gains, "gains_together": gains, "running": np.array([True, True, False])}
    sure, unsure = np.ones(3), np.array([60.0, 1.0, 1.0])
    assert chosen(market(times, 0.0, **leads, most=sure))[-1][0] == (1,)
    assert ((1, 2), 1, Mode.FIRST_BEFORE_SECOND) in chosen(market(times, 0.0, **leads, most=unsure))


def test_nobody_is_made_late() -> None:
    """What would be in time apart is never made late by a merge, whatever that saves."""
    soon = market(
        [[0.1 * HOUR, np.inf], [10 * HOUR, 6 * HOUR]],
        0.005,
        running=np.array([True, False]),
        slack_ms=np.array([LONG, 10.02 * HOUR]),
        money_weight=50.0,
    )
    assert chosen(soon) == APART


def test_progress_and_limits_forbid_side_by_side() -> None:
    """A job with progress is not trained side by side, and no job in turn on more GPUs than it may use."""
    begun = market(EQUAL, 0.5, joins=np.zeros((2, 2), dtype=bool))
    assert all(mode != Mode.TOGETHER for _, _, mode in chosen(begun))
    assert all(gpus == 1 for _, gpus, _ in chosen(begun))


@st.composite
def markets(draw: st.DrawFn) -> PricedJobs:
    count = draw(st.integers(2, 6))
    hours = st.floats(0.2, 30)
    times = [
        [one * HOUR, one * HOUR * draw(st.floats(0.5, 0.8))]
        for one in draw(st.lists(hours, min_size=count, max_size=count))
    ]
    gains = draw(st.lists(st.floats(-0.9, 1.5), min_size=count * count, max_size=count * count))
    running = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    times = [[one, np.inf if trains else two] for (one, two), trains in zip(times, running, strict=True)]
    slack = draw(st.lists(st.floats(0.1, 60), min_size=count, max_size=count))
    shares = st.lists(st.floats(0.05, 1), min_size=count, max_size=count)
    return market(
        times,
        0.0,
        least=np.array(draw(shares)),
        most=1 / np.array(draw(shares)),
        gains=np.array(gains).reshape(count, count),
        gains_together=np.array(gains[::-1]).reshape(count, count),
        running=running,
        joins=~(running[:, None] | running),
        slack_ms=np.array(slack) * HOUR,
        gpu_micros=np.array(draw(st.lists(st.sampled_from([740_000.0, 2_100_000.0]), min_size=count, max_size=count))),
    )


@settings(max_examples=60)
@given(markets())
def test_whatever_is_chosen_keeps_the_rules(drawn: PricedJobs) -> None:
    """A merge never costs more than apart unless it keeps a deadline that is missed apart, and makes nobody late who
    was in time; whoever trains keeps its place."""
    seen = set[int]()
    for group in solve(priced_problem(drawn, SIZES, 100, wait_cost=6.0)).groups:
        assert not seen & set(group.jobs)
        seen |= set(group.jobs)
        if group.mode == Mode.ALONE:
            continue
        one, other = group.jobs
        column = int(np.searchsorted(SIZES, group.gpus))
        course = course_of(drawn, SIZES, one, other, group.mode)
        merged = course.first_ms[0, column], course.second_ms[0, column]
        apart = [drawn.times_ms[job, 0] for job in group.jobs]
        slack = [drawn.slack_ms[job] for job in group.jobs]
        spent = sum(drawn.gpu_micros[job] * drawn.times_ms[job, 0] for job in group.jobs)
        need = any(a > s for a, s in zip(apart, slack, strict=True)) and all(
            m <= s for m, s in zip(merged, slack, strict=True)
        )
        assert course.money[0, column] <= spent * (1 + 1e-9) or need
        assert all(m <= max(a, s) * (1 + 1e-9) for m, a, s in zip(merged, apart, slack, strict=True))
        late = {Mode.FIRST_BEFORE_SECOND: [other], Mode.SECOND_BEFORE_FIRST: [one], Mode.TOGETHER: [one, other]}
        assert not any(drawn.running[job] for job in late[group.mode])
    assert len(seen) == len(drawn.own)


@settings(max_examples=60)
@given(markets())
def test_what_is_chosen_saves_wherever_its_jobs_end(drawn: PricedJobs) -> None:
    """If the jobs of a pair ended as early, or as late, as they may, the same merge would be allowed all the same and
    cost less than both apart; and being unsure never makes a merge that being sure would not."""
    count = len(drawn.own)
    sure = priced_problem(replace(drawn, least=np.ones(count), most=np.ones(count)), SIZES, 100, wait_cost=6.0)
    pairs = set(zip(sure.first.tolist(), sure.second.tolist(), strict=True))
    unsure = priced_problem(drawn, SIZES, 100, wait_cost=6.0)
    for number, (one, other) in enumerate(zip(unsure.first.tolist(), unsure.second.tolist(), strict=True)):
        assert (one, other) in pairs
        for share_one, share_other in product(
            (drawn.least[one], drawn.most[one]), (drawn.least[other], drawn.most[other])
        ):
            share = np.ones(count)
            share[[one, other]] = share_one, share_other
            there = replace(
                drawn,
                times_ms=drawn.times_ms * share[:, None],
                whole_ms=drawn.whole_ms * share,
                least=np.ones(count),
                most=np.ones(count),
            )
            then = priced_problem(there, SIZES, 100, wait_cost=6.0)
            place = list(zip(then.first.tolist(), then.second.tolist(), strict=True)).index((one, other))
            assert not (np.isfinite(unsure.merged[number]) & ~np.isfinite(then.merged[place])).any()
