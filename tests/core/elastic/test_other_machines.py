"""Whether a range goes on on a smaller machine once nothing presses, or on a larger one that nobody waits for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.elastic.deadlines import SizedMachine, grow_for_deadline
from app.core.elastic.other_machines import (
    CHEAPER,
    SPARE,
    MoveTimes,
    larger_machine,
    smaller_machine,
)
from app.core.elastic.profile import MeasuredSpeed, SpeedProfile
from app.core.elastic.scaling import HYSTERESIS
from tests.core.elastic.test_sharing import measured

CURVE = measured(g1=1.0, g2=1.8, g3=2.4, g4=2.8)
TIMES = MoveTimes(60.0)
ONE, TWO, FOUR = (SizedMachine(gpus, gpus * 1_000_000, 40.0) for gpus in (1, 2, 4))
HOUR_S = 3_600.0


def test_of_the_smaller_machines_the_one_that_saves_most_is_taken() -> None:
    """Four GPUs for a dollar each are as fast as 2.8: without a deadline the rest costs least on one."""
    found = smaller_machine(CURVE, FOUR, HOUR_S, None, TIMES, [TWO, ONE])
    assert found is not None and found.to == ONE
    rest_s = HOUR_S - 40.0
    gained = rest_s * (4_000_000 - 1_000_000 * 2.8)
    cost = 60.0 * 4_000_000 + 100.0 * 1_000_000
    assert found.saved_micros == int((gained - cost) / HOUR_S)


def test_a_deadline_leaves_only_those_on_which_it_is_in_time_with_time_to_spare() -> None:
    """An hour on four is 1.6 hours on two; a quarter of that has to be left besides."""
    there_s = 40.0 + (HOUR_S - 40.0) * 2.8 / 1.8
    just_s = SPARE * there_s + TIMES.pause_s
    found = smaller_machine(CURVE, FOUR, HOUR_S, just_s + 1, TIMES, [TWO, ONE])
    assert found is not None and found.to == TWO
    assert smaller_machine(CURVE, FOUR, HOUR_S, just_s - 1, TIMES, [TWO, ONE]) is None


@pytest.mark.parametrize(
    ("remaining_s", "to"),
    [(300.0, TWO), (30.0, TWO), (HOUR_S, replace(TWO, micros_per_h=2_400_000)), (HOUR_S, replace(TWO, gpus=5)),
     (HOUR_S, replace(TWO, gpus=4)), (HOUR_S, replace(TWO, arrival_s=HOUR_S))],
    ids=["little is left", "done before it comes", "its work costs no tenth less", "larger", "as large", "too late"],
)  # fmt: skip
def test_else_it_stays(remaining_s: float, to: SizedMachine) -> None:
    assert smaller_machine(CURVE, FOUR, remaining_s, None, TIMES, [to]) is None


def test_a_machine_whose_gpus_are_so_dear_that_it_would_be_moved_back_is_none() -> None:
    """Two GPUs of 1.2 dollars for four of one: by the price of a GPU alone the old machine is a tenth cheaper."""
    slow = measured(g2=1.0, g4=1.05)
    dear = SizedMachine(2, 2_400_000, 40.0)
    assert smaller_machine(slow, FOUR, 9 * HOUR_S, None, TIMES, [dear]) is None
    assert smaller_machine(slow, FOUR, 9 * HOUR_S, None, TIMES, [replace(dear, micros_per_h=2_100_000)]) is not None


def test_speeds_that_nobody_knows_move_nobody() -> None:
    """That each GPU brings as much is a guess; a predicted curve of a stated training is knowledge."""
    guess = SpeedProfile(4, measured={4: MeasuredSpeed(2.8, 0.0)})
    assert smaller_machine(guess, FOUR, HOUR_S, None, TIMES, [TWO]) is None
    assert larger_machine(guess, 4, HOUR_S, TIMES, [replace(FOUR, gpus=8)]) is None
    stated = replace(guess, predicted={1: 1.0, 2: 1.8, 4: 2.8, 8: 4.0})
    assert smaller_machine(stated, FOUR, HOUR_S, None, TIMES, [TWO]) is not None
    assert larger_machine(stated, 4, HOUR_S, TIMES, [replace(FOUR, gpus=8)]) is not None


def test_of_the_larger_machines_the_one_on_which_it_is_done_first_is_taken() -> None:
    """Less pause and arrival; of two that are as soon the smaller one."""
    found = larger_machine(CURVE, 1, HOUR_S, TIMES, [FOUR, TWO])
    assert found is not None and found.to == FOUR
    assert found.sooner_s == pytest.approx((HOUR_S - 40.0) * (1 - 1 / 2.8) - 60.0)
    flat = measured(g1=1.0, g2=1.8, g4=1.8)
    found = larger_machine(flat, 1, HOUR_S, TIMES, [FOUR, TWO])
    assert found is not None and found.to == TWO


def test_what_is_done_hardly_sooner_stays() -> None:
    """It has to be sooner by more than twice the pause, and the machine has to come before its end."""
    just_s = 40.0 + HYSTERESIS * TIMES.pause_s / (1 - 1 / 1.8)
    assert larger_machine(CURVE, 1, just_s + 1, TIMES, [TWO]) is not None
    assert larger_machine(CURVE, 1, just_s - 1, TIMES, [TWO]) is None
    assert larger_machine(CURVE, 1, HOUR_S, TIMES, [replace(TWO, arrival_s=HOUR_S)]) is None
    assert larger_machine(CURVE, 2, HOUR_S, TIMES, [ONE, TWO]) is None


@dataclass
class Course:
    """A job in a world in which nothing changes but itself: the sizes of its machines, one after the other."""

    profile: SpeedProfile
    machines: list[SizedMachine]
    gpus: int
    remaining_s: float  # at its present size
    left_s: float | None

    def play(self, steps: int, every_s: float) -> list[int]:
        had = [self.gpus]
        for _ in range(steps):
            to = self._next()
            if to is not None:
                self._moves(to)
                had.append(self.gpus)
            self._passes(every_s)
            if self.remaining_s <= 0:
                break
        return had

    def _next(self) -> SizedMachine | None:
        now = next(one for one in self.machines if one.gpus == self.gpus)
        if self.left_s is not None:
            grown = grow_for_deadline(
                self.profile, now.gpus, self.remaining_s, self.left_s, now.micros_per_h, self.machines
            )
            if grown is not None:
                return grown.to
        shrunk = smaller_machine(self.profile, now, self.remaining_s, self.left_s, TIMES, self.machines)
        return None if shrunk is None else shrunk.to

    def _moves(self, to: SizedMachine) -> None:
        self._passes(to.arrival_s)
        self.remaining_s *= self.profile.speed(self.gpus) / self.profile.speed(to.gpus)
        self.gpus = to.gpus
        self.left_s = None if self.left_s is None else self.left_s - TIMES.pause_s

    def _passes(self, seconds: float) -> None:
        self.remaining_s -= seconds
        self.left_s = None if self.left_s is None else self.left_s - seconds


def rising(steps: list[float]) -> list[float]:
    found = [1.0]
    for step in steps:
        found.append(found[-1] + step)
    return found


curves = st.lists(st.floats(0, 1), min_size=7, max_size=7).map(rising)
prices = st.lists(st.integers(100_000, 10_000_000), min_size=8, max_size=8)


@given(curves, prices, st.integers(1, 8), st.floats(60, 1e6), st.one_of(st.none(), st.floats(60, 1e6)),
       st.floats(0, 600), st.floats(10, 3_600))  # fmt: skip
def test_renting_comes_to_rest(
    curve: list[float], micros: list[int], gpus: int, remaining_s: float, left_s: float | None, arrival_s: float,
    every_s: float,
) -> None:  # fmt: skip
    """Whatever speeds, prices and deadlines are: nobody who has gone to a smaller machine goes to a larger one again,
    so there are no more moves than sizes, up and down."""
    profile = SpeedProfile(1, measured={size: MeasuredSpeed(one, 0.0) for size, one in enumerate(curve, 1)})
    machines = [SizedMachine(size, one, arrival_s) for size, one in enumerate(micros, 1)]
    had = Course(profile, machines, gpus, remaining_s, left_s).play(400, every_s)
    top = had.index(max(had))
    assert had[: top + 1] == sorted(had[: top + 1])
    assert had[top:] == sorted(had[top:], reverse=True)
    assert len(had) <= 15


@given(curves, prices, st.integers(2, 8), st.floats(60, 1e6), st.one_of(st.none(), st.floats(60, 1e6)),
       st.floats(0, 600))  # fmt: skip
def test_whoever_goes_to_a_smaller_machine_pays_less_and_is_in_time(
    curve: list[float], micros: list[int], gpus: int, remaining_s: float, left_s: float | None, arrival_s: float
) -> None:
    """Reckoned anew: what the rest costs if it stays, and if it goes."""
    profile = SpeedProfile(1, measured={size: MeasuredSpeed(one, 0.0) for size, one in enumerate(curve, 1)})
    machines = [SizedMachine(size, one, arrival_s) for size, one in enumerate(micros, 1)]
    now = machines[gpus - 1]
    found = smaller_machine(profile, now, remaining_s, left_s, TIMES, machines)
    if found is None:
        return
    work = (remaining_s - arrival_s) * curve[gpus - 1]
    there_s = work / curve[found.to.gpus - 1]
    stays = now.micros_per_h * remaining_s / HOUR_S
    goes = (now.micros_per_h + found.to.micros_per_h) * (arrival_s + TIMES.pause_s) / HOUR_S
    goes += found.to.micros_per_h * there_s / HOUR_S
    assert stays - goes == pytest.approx(found.saved_micros, rel=1e-3, abs=2)
    assert found.to.micros_per_h * there_s <= CHEAPER * now.micros_per_h * (remaining_s - arrival_s) * (1 + 1e-9)
    if left_s is not None:
        assert arrival_s + TIMES.pause_s + there_s <= left_s
