"""Whether a job goes to a larger machine for the sake of its deadline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.elastic.deadlines import LATE, SAVE_S, SizedMachine, grow_for_deadline
from app.core.elastic.profile import MeasuredSpeed, SpeedProfile
from app.core.lending import lend
from tests.core.elastic.test_sharing import asked, given_, measured
from tests.core.samples import NOW_MS
from tests.core.test_lending import board_of, elastic, machine, sizes, waits

LINEAR = measured(g1=1.0, g2=2.0, g3=3.0, g4=4.0)
TWO, FOUR = SizedMachine(2, 2_000_000, 40.0), SizedMachine(4, 4_000_000, 40.0)
HOUR_S = 3_600.0


def test_one_that_is_in_time_stays() -> None:
    """A prediction that is past the deadline by a little is no reason to pay."""
    assert grow_for_deadline(LINEAR, 1, HOUR_S, HOUR_S, 1_000_000, [TWO, FOUR]) is None
    assert grow_for_deadline(LINEAR, 1, LATE * HOUR_S, HOUR_S, 1_000_000, [TWO, FOUR]) is None


def test_the_size_on_which_it_is_in_time_and_that_pays_best_is_taken() -> None:
    """Two GPUs are enough, with the minute of saving and the machine's arrival; for less time it takes four."""
    found = grow_for_deadline(LINEAR, 1, 1.5 * HOUR_S, HOUR_S, 1_000_000, [FOUR, TWO])
    assert found is not None
    assert (found.to, found.late_s) == (TWO, 0.5 * HOUR_S)
    assert found.early_s == pytest.approx(HOUR_S - SAVE_S - 40.0 - 0.75 * HOUR_S)
    sooner = grow_for_deadline(LINEAR, 1, 1.5 * HOUR_S, 0.5 * HOUR_S, 1_000_000, [FOUR, TWO])
    assert sooner is not None and sooner.to == FOUR
    cheap = replace(FOUR, micros_per_h=1_500_000)
    best = grow_for_deadline(LINEAR, 1, 1.5 * HOUR_S, HOUR_S, 1_000_000, [TWO, cheap])
    assert best is not None and best.to == cheap


def test_what_is_late_all_the_same_is_not_paid_for() -> None:
    """Neither where the largest is too slow, nor where it takes too long to come, nor after the deadline."""
    assert grow_for_deadline(LINEAR, 1, 9 * HOUR_S, HOUR_S, 1_000_000, [TWO, FOUR]) is None
    slow = replace(TWO, arrival_s=HOUR_S / 2)
    assert grow_for_deadline(LINEAR, 1, 1.5 * HOUR_S, HOUR_S, 1_000_000, [slow]) is None
    assert grow_for_deadline(LINEAR, 1, HOUR_S, -1.0, 1_000_000, [TWO]) is None


def test_a_speed_that_nobody_knows_is_not_paid_for() -> None:
    """A guess of its staircase is knowledge, where its training is stated; that each GPU brings as much is not."""
    guess = SpeedProfile(1, measured={1: MeasuredSpeed(1.0, 0.0)})
    assert grow_for_deadline(guess, 1, 1.5 * HOUR_S, HOUR_S, 1_000_000, [TWO]) is None
    stated = replace(guess, predicted={1: 5.0, 2: 9.5})
    found = grow_for_deadline(stated, 1, 1.5 * HOUR_S, HOUR_S, 1_000_000, [TWO])
    assert found is not None and found.to == TWO


machines = st.builds(SizedMachine, st.integers(1, 8), st.integers(0, 10**8), st.floats(0, 1e5))
speeds = st.lists(st.floats(0.01, 100), min_size=8, max_size=8)


@given(speeds, st.integers(1, 8), st.floats(0, 1e7), st.floats(-1e5, 1e7), st.integers(0, 10**8), st.lists(machines))
def test_whoever_goes_is_in_time_there_and_was_not(
    curve: list[float], gpus: int, remaining_s: float, left_s: float, now_micros: int, found_on: list[SizedMachine]
) -> None:
    profile = SpeedProfile(1, measured={size: MeasuredSpeed(one, 0.0) for size, one in enumerate(curve, 1)})
    found = grow_for_deadline(profile, gpus, remaining_s, left_s, now_micros, found_on)
    if found is not None:
        assert found.to.gpus > gpus
        assert remaining_s > left_s > 0
        assert found.early_s >= 0
        assert SAVE_S + found.to.arrival_s + remaining_s * curve[gpus - 1] / curve[found.to.gpus - 1] <= left_s + 1e-6


def test_inside_a_machine_whoever_would_be_late_lends_last_and_grows_first() -> None:
    """The one that holds most would miss its deadline with one less; and of idle GPUs it has them all."""
    a = replace(elastic("a", 0, 1, 2, own=4), is_range=True, due_ms=NOW_MS + 110_000)
    b = replace(elastic("b", 3, 4, own=4), is_range=True)
    board = board_of([machine("node_a", 7, a, b)], [a, b], [])
    board.put_job(replace(board.jobs["job_a"], total_run_ms=NOW_MS + 120_000))  # it has run from 0 on
    known = given_({}, {"a": LINEAR, "b": LINEAR})
    assert sizes(lend(board, [a, b], set(), NOW_MS, known)) == {"run_a": 4, "run_b": 3}
    line = [waits("job_w", 3)]
    crowded = board_of([machine("node_a", 7, a, b)], [a, b], line)
    crowded.put_job(replace(crowded.jobs["job_a"], total_run_ms=NOW_MS + 100_000))
    assert sizes(lend(crowded, [a, b], {"job_w"}, NOW_MS, known)) == {"run_b": 1}
    without = replace(a, due_ms=None)
    assert sizes(asked(7, [without, b], line, known)) == {"run_a": 2}
