"""Algorithm 1: how F follows the pressure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.tiers import PAPER_BUDGET, BudgetRule, next_budget_ms


def test_the_papers_constants() -> None:
    """G_up 10, R_up 100, G_dn 2, R_dn 30 and F0 300, in seconds."""
    rule = PAPER_BUDGET
    gains = rule.first_ms, rule.up_gain_ms, rule.up_most_ms, rule.down_gain_ms, rule.down_most_ms
    assert gains == (300_000, 10_000, 100_000, 2_000, 30_000)


@pytest.mark.parametrize(
    ("p", "seconds"),
    [
        (1.5, 305),  # 10 x 0.5
        (2.0, 310),
        (11.0, 400),  # 10 x 10 is the limit
        (1e6, 400),
        (0.5, 299),  # 2 x 0.5
        (0.0, 298),
        (1.0, 300),
        (1.05, 300),  # the dead band, both edges
        (0.95, 300),
    ],
)
def test_one_tick_from_300_s(p: float, seconds: int) -> None:
    """F rises by G_up (p - 1), at most R_up, and falls by G_dn (1 - p)."""
    assert next_budget_ms(PAPER_BUDGET, 300_000, p) == seconds * 1000


def test_just_outside_the_dead_band_it_moves() -> None:
    """Beyond the band F moves by all of the distance from 1, not by the distance from the band."""
    assert next_budget_ms(PAPER_BUDGET, 300_000, 1.06) == pytest.approx(300_600)
    assert next_budget_ms(PAPER_BUDGET, 300_000, 0.94) == pytest.approx(299_880)


def test_the_fall_has_a_limit() -> None:
    """However steep the gain, F falls by at most R_dn a tick."""
    steep = replace(PAPER_BUDGET, down_gain_ms=1_000_000)
    assert next_budget_ms(steep, 300_000, 0.0) == 270_000


def test_bounds_hold() -> None:
    """F neither passes its bounds nor stays beyond them when the bounds have changed."""
    assert next_budget_ms(PAPER_BUDGET, 1_790_000, 9.0) == 1_800_000
    assert next_budget_ms(PAPER_BUDGET, 61_000, 0.0) == 60_000
    assert next_budget_ms(PAPER_BUDGET, 9_000_000, 1.0) == 1_800_000
    assert next_budget_ms(PAPER_BUDGET, 0, 1.0) == 60_000


rules = st.builds(
    BudgetRule,
    least_ms=st.integers(0, 60_000),
    most_ms=st.integers(60_000, 3_600_000),
    up_gain_ms=st.integers(0, 100_000),
    up_most_ms=st.integers(0, 200_000),
    down_gain_ms=st.integers(0, 100_000),
    down_most_ms=st.integers(0, 200_000),
    dead_band=st.floats(0, 0.5),
)
pressures = st.floats(0, 1e6)


@settings(max_examples=80)
@given(rules, st.floats(0, 1e8), st.lists(pressures, min_size=1, max_size=8))
def test_always_within_bounds(rule: BudgetRule, budget_ms: float, course: list[float]) -> None:
    """Whatever the pressures and wherever F begins: it is within its bounds, and no tick moves it by too much."""
    before = None
    for p in course:
        budget_ms = next_budget_ms(rule, budget_ms, p)
        assert rule.least_ms <= budget_ms <= rule.most_ms
        if before is not None:
            assert -rule.down_most_ms - 1e-6 <= budget_ms - before <= rule.up_most_ms + 1e-6
        before = budget_ms


@settings(max_examples=80)
@given(rules, st.floats(60_000, 60_001), pressures)
def test_constant_pressure_never_turns_it_round(rule: BudgetRule, budget_ms: float, p: float) -> None:
    """Under constant pressure F goes one way, or stays: it does not oscillate."""
    course = [budget_ms]
    for _ in range(20):
        course.append(next_budget_ms(rule, course[-1], p))
    assert course in (sorted(course), sorted(course, reverse=True))


@settings(max_examples=80)
@given(rules, st.floats(0, 4e6), pressures, pressures)
def test_more_pressure_never_means_less_time(rule: BudgetRule, budget_ms: float, one: float, other: float) -> None:
    """F at the next tick rises with the pressure."""
    low, high = sorted((one, other))
    assert next_budget_ms(rule, budget_ms, low) <= next_budget_ms(rule, budget_ms, high)
