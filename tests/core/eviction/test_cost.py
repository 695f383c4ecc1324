"""What ending a job costs: saves that are learned, intervals that are stated, checkpoints that are hidden."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.eviction import GraceSaves, GrowingCost, PoolHabits, Saving, cost_of_ending, pool_habits

MINUTE_MS = 60_000
HABITS = PoolHabits(0.5, 5 * MINUTE_MS)


def test_the_formula_with_numbers() -> None:
    """Two GPUs, unsaved for 100 s, half of its saves fail, 10 s to save, 20 s to restore: 2 * (0.5 * 100 + 30)."""
    job = Saving(0, saved_ms=0, save_ms=10_000, restore_ms=20_000, grace=GraceSaves(2, 1))
    cost = cost_of_ending(job, 2, HABITS, 100_000)
    assert cost.at(100_000) == 160 * 1_000_000
    assert cost.at(200_000) - cost.at(100_000) == 100 * 1_000_000
    assert "2 GPUs x (0.50 no save x 100 s unsaved + 30 s to save and restore) x 1" in cost.words


def test_the_literal_cost_counts_what_a_save_rescues() -> None:
    """The paper's C ends the job that cannot save rather than the one that always does; ours the other way round."""
    saver = Saving(0, saved_ms=0, grace=GraceSaves(100, 100))
    other = Saving(0, saved_ms=60_000, grace=GraceSaves(100, 0))
    now_ms = 100_000
    literal = {name: now_ms - (job.saved_ms or 0) for name, job in (("saver", saver), ("other", other))}
    ours = {
        name: cost_of_ending(job, 1, HABITS, now_ms).at(now_ms) for name, job in (("saver", saver), ("other", other))
    }
    assert min(literal, key=literal.__getitem__) == "other"
    assert min(ours, key=ours.__getitem__) == "saver"


@given(st.integers(0, 200), st.integers(0, 200), st.floats(0, 1))
def test_what_is_learned_lies_between_what_was_seen_and_the_pool(failed: int, saved: int, pool: float) -> None:
    """The estimate moves from the pool's probability to the job's own share, and each outcome moves it its way."""
    grace = GraceSaves(failed + saved, saved)
    own = failed / (failed + saved) if failed + saved else pool
    assert min(own, pool) - 1e-9 <= grace.no_save(pool) <= max(own, pool) + 1e-9
    assert grace.after(True).no_save(pool) <= grace.no_save(pool) <= grace.after(False).no_save(pool)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -0.1, 1.1])
def test_no_probability_is_refused(wrong: float) -> None:
    """NaN and what lies outside of 0 to 1 never get into a cost."""
    with pytest.raises(ValueError, match="no probability"):
        GraceSaves().no_save(wrong)


@pytest.mark.parametrize("made", [(1, 2), (-1, -1), (0, 1), (3, -1)])
def test_impossible_counts_are_refused(made: tuple[int, int]) -> None:
    """More saves than tries, or fewer than none."""
    with pytest.raises(ValueError, match="cannot be"):
        GraceSaves(*made)


def test_hiding_checkpoints_spares_nobody() -> None:
    """By the literal rule a job that tells of no checkpoint is dearer every minute and is never chosen; here it counts
    as the median job for ever, so that it goes before half of those that tell."""
    told = [Saving(0, saved_ms=minute * MINUTE_MS, grace=GraceSaves(2, 1)) for minute in (594, 595, 596, 597, 598)]
    hides, now_ms = Saving(0, grace=GraceSaves(2, 1)), 600 * MINUTE_MS
    habits = pool_habits([*told, hides], now_ms)
    costs = [cost_of_ending(job, 1, habits, now_ms).at(now_ms) for job in told]
    hidden = cost_of_ending(hides, 1, habits, now_ms)
    assert habits.unsaved_ms == 4 * MINUTE_MS
    assert sum(cost > hidden.at(now_ms) for cost in costs) == 2
    assert hidden.at(now_ms + 10**9) == hidden.at(now_ms)
    assert now_ms - hides.started_ms > max(now_ms - (job.saved_ms or 0) for job in told)  # the literal one's choice


@given(st.integers(1, 64), st.integers(0, 10**9), st.integers(0, 10**7), st.integers(1, 10**7))
def test_nothing_that_is_hidden_counts_more_than_the_median(gpus: int, age_ms: int, median: int, stated: int) -> None:
    """However old a run is: without checkpoints at most the median, with a stated interval at most that interval until
    two of them have passed, and after that the median again."""
    habits = PoolHabits(1.0, median)
    silent = Saving(0, grace=GraceSaves())
    assert cost_of_ending(silent, gpus, habits, age_ms).at(age_ms) == 1000 * gpus * min(age_ms, median)
    stating = replace(silent, stated_interval_ms=stated)
    most = stated if age_ms < 2 * stated else median
    assert cost_of_ending(stating, gpus, habits, age_ms).at(age_ms) == 1000 * gpus * min(age_ms, most)


def test_what_is_measured_comes_before_what_is_stated() -> None:
    """A checkpoint a minute ago counts, whatever interval the owner has named."""
    job = Saving(0, saved_ms=9 * MINUTE_MS, stated_interval_ms=1, grace=GraceSaves())
    assert cost_of_ending(job, 1, PoolHabits(1.0), 10 * MINUTE_MS).at(10 * MINUTE_MS) == 1000 * MINUTE_MS


@given(st.integers(0, 20))
def test_evictions_suffered_raise_the_price(suffered: int) -> None:
    """Every one by as much as the first cost: nobody is the cheapest for ever."""
    job = Saving(0, saved_ms=0, save_ms=1_000, restore_ms=1_000)
    once = cost_of_ending(job, 3, HABITS, MINUTE_MS).at(MINUTE_MS)
    more = cost_of_ending(replace(job, suffered=suffered), 3, HABITS, MINUTE_MS).at(MINUTE_MS)
    assert more == once * (1 + suffered)


def test_times_that_run_back_and_amounts_below_zero() -> None:
    """A checkpoint in the future loses nothing; no GPUs, and costs below zero, are refused."""
    assert cost_of_ending(Saving(0, saved_ms=10**9), 1, HABITS, 5).at(5) == 0
    with pytest.raises(ValueError, match="cannot be freed"):
        cost_of_ending(Saving(0), 0, HABITS, 0)
    with pytest.raises(ValueError, match="below zero"):
        GrowingCost(-1)


def test_a_pool_without_jobs_has_habits() -> None:
    """Before anything is known: one failure in two, ten minutes unsaved."""
    assert pool_habits([], 0) == PoolHabits(0.5, 600_000)
