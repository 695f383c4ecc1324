"""How many points a run sends, and which."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from workers.agent.points import (
    BURST_POINTS,
    LEAST_AT_A_CHECKPOINT,
    MOST_NUMBERS,
    REPORT_NUMBERS,
    REPORT_POINTS,
    STEADY_POINTS,
    Point,
    Points,
    reports_of,
    thinned,
)

VALUES = st.dictionaries(st.sampled_from(["loss", "lr", "eval"]), st.floats(-9, 9, allow_nan=False), min_size=1)
SERIES = st.lists(st.tuples(st.integers(0, 300), VALUES), max_size=200).map(
    lambda told: [Point(step, index, values) for index, (step, values) in enumerate(told)]
)


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def many(count: int, first: int = 0) -> list[Point]:
    return [Point(step, 0, {"loss": math.sin(step)}) for step in range(first, first + count)]


@given(SERIES, st.integers(2, 60))
def test_thinned_points_are_real_ordered_and_few(points: list[Point], most: int) -> None:
    """Of a step that was told twice the last one counts; the first and the last stay; all stay where they fit."""
    newest = {point.step: point for point in points}
    whole = [point for point in points if newest[point.step] is point]
    kept = thinned(points, most)
    assert len(kept) <= most
    assert [point for point in whole if point in kept] == kept
    if len(whole) <= most:
        assert kept == whole
    else:
        assert (kept[0], kept[-1]) == (whole[0], whole[-1])


@given(SERIES)
def test_extremes_of_each_name_stay(points: list[Point]) -> None:
    """Where there is room for two points of each name."""
    kept = thinned(points, 8)
    newest = {point.step: point for point in points}.values()
    for name in ("loss", "lr", "eval"):
        values = [point.values[name] for point in newest if name in point.values]
        shown = [point.values[name] for point in kept if name in point.values]
        if values:
            assert (min(shown), max(shown)) == (min(values), max(values))


def test_a_spike_in_any_stretch_stays() -> None:
    """Not only the highest of all."""
    spikes = {1_370: 9.0, 5_120: 5.0, 8_030: 7.0}
    points = [Point(step, 0, {"loss": spikes.get(step, 1.0)}) for step in range(10_000)]
    kept = {point.step: point.values["loss"] for point in thinned(points, 100)}
    assert spikes.items() <= kept.items()


def test_nothing_is_left_out_of_what_a_usual_script_measures() -> None:
    """Some steps a second, for hours."""
    clock = Clock()
    points = Points(clock)
    sent = []
    for second in range(3600):
        points.add(many(10, 10 * second))
        clock.s += 1
        sent += points.take(at_once=False)
    assert [point.step for point in sent] == list(range(36_000))
    assert points.left_out == 0


def test_a_burst_is_sent_as_far_as_its_curve_needs_it() -> None:
    """Many lines come to some thousand points, of which the last is the last; what is left out is counted."""
    points = Points(Clock())
    for first in range(0, 200_000, 50_000):
        points.add(many(50_000, first))
    sent = points.take(at_once=True)
    assert 1000 < len(sent) <= BURST_POINTS
    assert (sent[0].step, sent[-1].step) == (0, 199_999)
    assert points.left_out == 200_000 - len(sent)
    assert points.take(at_once=True) == []


def test_a_flood_for_hours_is_thinned_more_and_more() -> None:
    """At first to a rate, then to fewer: what a job has is bounded, however long it lasts."""
    clock = Clock()
    points = Points(clock)
    flood = many(6000)
    sent = [0]
    for _ in range(200):
        points.add(flood)
        clock.s += 100
        sent.append(sent[-1] + len(points.take(at_once=False)))
    assert all(now - before <= BURST_POINTS for before, now in itertools.pairwise(sent))
    assert sent[-1] - sent[-10] < 0.4 * (sent[10] - sent[1])
    assert STEADY_POINTS < sent[-1] < 6 * STEADY_POINTS


def test_whoever_waits_gets_a_curve_though_the_budget_is_used_up() -> None:
    """At a checkpoint what was measured is sent, thinned."""
    points = Points(Clock())
    points.add(many(BURST_POINTS))
    assert len(points.take(at_once=False)) == BURST_POINTS
    points.add(many(2000, BURST_POINTS))
    assert points.take(at_once=False) == []
    last = points.take(at_once=True)
    assert LEAST_AT_A_CHECKPOINT // 2 <= len(last) <= LEAST_AT_A_CHECKPOINT
    assert last[-1].step == BURST_POINTS + 1999


def test_memory_is_bounded_while_nothing_can_be_sent() -> None:
    """By the numbers in it, whatever the number of names."""
    points = Points(Clock())
    for first in range(0, 100_000, 1000):
        points.add([Point(step, 0, {f"layer {n}": n / 7 for n in range(100)}) for step in range(first, first + 100)])
    assert sum(len(point.values) + 1 for point in points.take(at_once=True)) <= MOST_NUMBERS


@given(st.lists(st.integers(0, 100), max_size=300))
def test_reports_are_bounded_and_hold_all(sizes: list[int]) -> None:
    """In order; in points, and in the numbers that a body holds."""
    points = [Point(step, 0, {str(n): 0.0 for n in range(size)}) for step, size in enumerate(sizes)] * 8
    reports = list(reports_of(points))
    assert [point for report in reports for point in report] == points
    assert all(0 < len(report) <= REPORT_POINTS for report in reports)
    assert all(sum(len(point.values) + 1 for point in report) <= REPORT_NUMBERS for report in reports)
