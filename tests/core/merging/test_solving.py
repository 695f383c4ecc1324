"""The fast solver and the integer program choose well, keep every rule, and tell the truth about how well."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.merging.exact import solve_exactly
from app.core.merging.fast import solve, solve_apart
from app.core.merging.problem import Group, Mode, Problem, cost_of
from benchmarks.merger import instance
from tests.core.merging.instances import NEVER, least_cost, merged_of, problem, problems

CLOSE = 1e-9


def test_two_jobs_that_help_each_other_are_merged() -> None:
    """Together on one GPU they cost less than apart on two."""
    found = solve(problem([[2.0, 1.5], [2.0, 1.5]], {(0, 1): [1.0, 0.9]}, gpus=1))
    assert found.groups == (Group((0, 1), 1, Mode.TOGETHER),)
    assert found.cost == 1.0


def test_jobs_that_do_not_help_stay_apart() -> None:
    """A merge that costs more than both alone is not made."""
    found = solve(problem([[2.0, 1.5], [2.0, 1.5]], {(0, 1): [5.0, 4.5]}, gpus=2))
    assert merged_of(found.groups) == set()
    assert found.cost == 4.0


def test_an_odd_ring_of_friends() -> None:
    """Of three that all fit together two are merged, and one runs alone: the relaxed bound is lower, and says so."""
    pairs = {(0, 1): [1.0], (0, 2): [1.1], (1, 2): [1.2]}
    found = solve(problem([[4.0], [4.0], [4.0]], pairs, gpus=3))
    assert merged_of(found.groups) == {(0, 1)}
    assert found.cost == pytest.approx(5.0)
    assert 0 < found.gap < 1


def test_a_pair_falls_apart_where_gpus_are_short() -> None:
    """Merged they would need two GPUs; with one, the one that gains more by it runs."""
    found = solve(problem([[1.0, 0.9], [3.0, 2.0]], {(0, 1): [NEVER, 0.5]}, gpus=1))
    assert set(found.groups) == {Group((0,), 1), Group((1,), 0)}


@pytest.mark.parametrize("solver", [solve, solve_apart])
def test_nobody_and_nothing(solver) -> None:  # type: ignore[no-untyped-def]  # one of two functions
    """No jobs cost nothing; without a GPU all wait."""
    empty = Problem(
        np.array([1]),
        np.zeros((0, 1)),
        np.zeros(0),
        np.zeros(0, dtype=np.int64),
        np.zeros(0, dtype=np.int64),
        np.zeros((0, 1)),
        np.zeros((0, 1), dtype=np.int64),
        4,
    )
    assert (solver(empty).groups, solver(empty).cost, solver(empty).gap) == ((), 0.0, 0.0)
    waiting = solver(problem([[1.0], [1.0]], gpus=0))
    assert (set(waiting.groups), waiting.cost) == ({Group((0,), 0), Group((1,), 0)}, 12.0)


@given(problems())
def test_every_choice_keeps_the_rules(given_problem: Problem) -> None:
    """Each job once, no GPU twice, the cost as added up anew; never below the bound, never above running apart."""
    found = solve(given_problem, good_enough=0.0)
    assert cost_of(given_problem, found.groups) == pytest.approx(found.cost)
    assert found.bound <= found.cost + CLOSE
    assert found.cost <= solve_apart(given_problem).cost + CLOSE


@given(problems())
def test_no_choice_undercuts_the_bound(given_problem: Problem) -> None:
    """The certificate is sound, and the integer program finds the best of all."""
    least = least_cost(given_problem)
    found = solve(given_problem)
    assert found.bound <= least + 1e-6
    assert found.cost >= least - CLOSE
    exact = solve_exactly(given_problem, time_limit_s=20)
    assert exact is not None
    assert exact.cost == pytest.approx(least, rel=1e-3)
    assert cost_of(given_problem, exact.groups) == pytest.approx(exact.cost)


@pytest.mark.parametrize(("jobs", "seed"), [(20, 0), (20, 1), (40, 2), (60, 3)])
def test_close_to_the_best_on_realistic_jobs(jobs: int, seed: int) -> None:
    """Within half a percent of the integer program's cost, on the benchmark's own jobs."""
    given_problem = instance(jobs, seed)
    exact = solve_exactly(given_problem, time_limit_s=60)
    assert exact is not None
    assert solve(given_problem).cost <= exact.cost * 1.005


@given(st.integers(1, 30), st.integers(0, 5))
@settings(max_examples=20)
def test_the_same_problem_gives_the_same_choice(jobs: int, seed: int) -> None:
    """Twice the same."""
    assert solve(instance(jobs, seed)) == solve(instance(jobs, seed))


def test_no_time_is_no_answer() -> None:
    """The integer program says None when its time is over before it has found anything; running apart always works."""
    given_problem = instance(60, 0)
    assert solve_exactly(given_problem, time_limit_s=0.0) is None
    assert cost_of(given_problem, solve_apart(given_problem).groups) > 0


def test_costs_of_the_wrong_shape() -> None:
    """The message names both shapes; sizes must rise."""
    with pytest.raises(ValueError, match=r"\(2, 1\)"):
        Problem(
            np.array([1, 2]),
            np.ones((2, 1)),
            np.ones(2),
            np.zeros(0, dtype=np.int64),
            np.zeros(0, dtype=np.int64),
            np.zeros((0, 2)),
            np.zeros((0, 2), dtype=np.int64),
            1,
        )
    with pytest.raises(ValueError, match="rise"):
        problem_with_sizes([2, 1])


def problem_with_sizes(sizes: list[int]) -> Problem:
    none = np.zeros(0, dtype=np.int64)
    wide = np.zeros((0, len(sizes)))
    return Problem(np.array(sizes), np.ones((1, len(sizes))), np.ones(1), none, none, wide, wide.astype(np.int64), 1)


@pytest.mark.parametrize(
    ("groups", "wrong"),
    [
        ([Group((0,), 1), Group((0,), 1)], "twice"),
        ([Group((0,), 1)], "1 of 2 jobs"),
        ([Group((0,), 2), Group((1,), 2)], "on 4 of 2 GPUs"),
        ([Group((0, 1), 1, Mode.FIRST_BEFORE_SECOND)], "mode"),
    ],
)
def test_a_choice_that_breaks_a_rule_is_told(groups: list[Group], wrong: str) -> None:
    """Adding up checks equations 8-13."""
    with pytest.raises(ValueError, match=wrong):
        cost_of(problem([[1.0, 0.9], [1.0, 0.9]], {(0, 1): [0.5, 0.4]}, gpus=2), groups)
