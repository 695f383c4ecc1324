"""What it costs to train alone, in turn, or side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.merging.fast import solve
from app.core.merging.objective import Workload, problem_of
from app.core.merging.problem import Group, Mode, Problem

SIZES = np.array([1])


def workload(times_s: list[float], gains: list[list[float]], **changes: Any) -> Workload:
    """One size of one GPU; the fair share is one GPU, and two for a pair would halve the time."""
    count = len(times_s)
    given_times = np.array(times_s, dtype=float)
    fields: dict[str, Any] = {
        "times_s": given_times[:, None],
        "fair_s": given_times,
        "fair_pair_s": given_times / 2,
        "bases": np.zeros(count, dtype=np.int64),
        "gains": np.array(gains, dtype=float),
        "may_share": np.ones(count, dtype=bool),
        "may_join": np.ones(count, dtype=bool),
    }
    return Workload(**(fields | changes))


def of(work: Workload, gpus: int = 1) -> Problem:
    return problem_of(work, SIZES, gpus, wait_cost=6.0)


def test_alone_is_the_slowdown_against_the_fair_share() -> None:
    """Twice as long as with the fair share costs two."""
    work = workload([100.0], [[0.0]], fair_s=np.array([50.0]))
    assert of(work).alone.tolist() == [[2.0]]


def test_in_turn_by_hand() -> None:
    """100 s, then 100 s shortened by a gain of 1 to 50 s: 250 s of completion times where apart there are 300.

    The second takes twice its fair time of 25 s; this counts for both jobs, and is divided by 300 / 250.
    """
    work = workload([100.0, 100.0], [[0.0, 1.0], [0.0, 0.0]], may_join=np.zeros(2, dtype=bool))
    got = of(work)
    assert got.modes.tolist() == [[Mode.FIRST_BEFORE_SECOND]]
    assert got.merged[0, 0] == pytest.approx(2 * 50 / 25 / (300 / 250))


def test_side_by_side_by_hand() -> None:
    """Both gain 1: 200 s become 100 s for both, 200 s of completion times where apart there are 300."""
    work = workload([100.0, 100.0], [[0.0, 1.0], [1.0, 0.0]])
    got = of(work)
    assert got.modes.tolist() == [[Mode.TOGETHER]]
    assert got.merged[0, 0] == pytest.approx(2 * 100 / (100 / 2) / (300 / 200))


@pytest.mark.parametrize(
    "changes",
    [
        {"bases": np.array([0, 1])},
        {"may_share": np.array([True, False])},
    ],
    ids=["another base model", "opted out"],
)
def test_who_may_not_be_merged(changes: dict[str, Any]) -> None:
    """Only jobs of the same base, and only those that both allow it."""
    assert len(of(workload([100.0, 100.0], [[0.0, 1.0], [1.0, 0.0]], **changes)).first) == 0


def test_a_merge_that_makes_both_wait_is_left_out() -> None:
    """No gain at all: in turn the sum of completion times is the same and side by side it is worse."""
    got = of(workload([100.0, 100.0], [[0.0, -0.2], [-0.2, 0.0]]))
    assert len(got.first) == 0


def test_a_started_job_is_never_trained_side_by_side() -> None:
    """It has progress of its own; in turn is still possible."""
    gains = [[0.0, 1.0], [1.0, 0.0]]
    got = of(workload([100.0, 100.0], gains, may_join=np.array([True, False])))
    assert got.modes.tolist() != [[Mode.TOGETHER]]


def test_a_merge_frees_gpus_for_others() -> None:
    """Four jobs, two GPUs: two pairs that help each other, instead of two jobs that wait."""
    gains = np.full((4, 4), -0.5)
    gains[0, 1] = gains[1, 0] = gains[2, 3] = gains[3, 2] = 1.5
    chosen = solve(of(workload([100.0] * 4, gains.tolist()), gpus=2))
    assert {group.jobs for group in chosen.groups} == {(0, 1), (2, 3)}
    assert all(group.gpus == 1 for group in chosen.groups)


@given(st.floats(1.5, 50.0), st.floats(-0.5, 2.0), st.floats(-0.5, 2.0))
def test_the_unit_of_time_does_not_matter(factor: float, there: float, back: float) -> None:
    """Seconds or hours: the same costs, the same choice."""
    gains = [[0.0, there], [back, 0.0]]
    one, other = of(workload([100.0, 300.0], gains)), of(workload([100.0 * factor, 300.0 * factor], gains))
    assert np.allclose(one.merged, other.merged)
    assert np.allclose(one.alone, other.alone)


@given(st.lists(st.floats(10, 1e5), min_size=2, max_size=6), st.floats(0.0, 2.0))
def test_more_gain_never_costs_more(times_s: list[float], gain: float) -> None:
    """With every gain raised alike, the best choice costs no more."""
    count = len(times_s)
    none, some = (solve(of(workload(times_s, np.full((count, count), g).tolist()), gpus=2)) for g in (0.0, gain))
    assert some.bound <= none.cost + 1e-6


def test_groups_are_places_of_the_workload() -> None:
    """The answer speaks of the jobs as they were given."""
    chosen = solve(of(workload([10.0], [[0.0]])))
    assert chosen.groups == (Group((0,), 1),)
