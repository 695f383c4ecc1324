"""Jobs that take ranges are drawn from generators of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidInput
from app.simulator.options import Options
from app.simulator.ranges.drawing import TaskRange, parallel_speeds, with_ranges
from app.simulator.running import simulate
from app.simulator.traces.generating import generate
from tests.simulator.scenarios import task


@given(st.integers(0, 1_000), st.floats(0, 1), st.floats(0, 1))
def test_who_takes_a_range_with_a_small_share_does_with_a_large_one(seed: int, one: float, other: float) -> None:
    tasks = [task(f"a{at}", 60, gpus=1 + at % 12, saves=at % 7 != 0) for at in range(40)]
    few, many = (with_ranges(tasks, share, seed) for share in sorted((one, other)))
    assert all(large == small for small, large in zip(few, many, strict=True) if small.elastic is not None)
    assert [replace(a, elastic=None) for a in many] == tasks
    assert not any(a.elastic for a in many if not a.saves or a.gpus > 8)
    assert with_ranges(tasks, 0.0, seed) == tuple(tasks)


def test_what_is_drawn_is_half_to_eight_times_of_what_a_trace_asks_for() -> None:
    drawn = with_ranges([task(f"a{at}", 60, gpus=4) for at in range(50)], 1.0, 0)
    ranges = {(one.elastic.least, one.elastic.most) for one in drawn if one.elastic is not None}
    assert ranges == {(2, 8)}
    singles = with_ranges([task(f"a{at}", 60) for at in range(50)], 1.0, 0)
    assert {(one.elastic.least, one.elastic.most) for one in singles if one.elastic} == {(1, 2), (1, 4), (1, 8)}
    stated = sum(bool(one.elastic.predicted) for one in singles if one.elastic)
    assert 15 < stated < 35


def test_speeds_are_those_of_the_gpus_that_work_is_told_of() -> None:
    assert parallel_speeds(1.0, 1, 4) == (1000, 2000, 3000, 4000)
    assert parallel_speeds(1.0, 4, 4) == (250, 500, 750, 1000)
    assert parallel_speeds(0.0, 2, 3) == (1000, 1000, 1000)
    assert parallel_speeds(0.9, 8, 2)[1] < 1000
    with pytest.raises(ValueError, match="within 0 and 1"):
        parallel_speeds(1.1, 1, 2)


@pytest.mark.parametrize(
    ("least", "most", "speeds"),
    [(0, 1, (1000,)), (2, 1, (1000, 1000)), (1, 9, (1000,) * 9), (1, 2, (1000,)), (1, 2, (1000, 0)), (1, 1, ())],
)
def test_a_range_that_makes_no_sense_is_refused(least: int, most: int, speeds: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a range"):
        TaskRange(least, most, speeds)


def test_a_prediction_has_every_number_or_none() -> None:
    with pytest.raises(ValueError, match="a speed above 0 with each number"):
        TaskRange(1, 2, (1000, 1900), (1000,))


def test_where_machines_are_rented_they_have_usual_sizes() -> None:
    assert TaskRange(3, 7, (1000,) * 7).sizes() == {3, 4, 7}
    assert TaskRange(2, 2, (1000,) * 2).sizes() == {2}


# Asked for


def test_a_share_that_is_none_is_refused() -> None:
    for text in ("1.5", "-1", "half", ""):
        with pytest.raises(InvalidInput, match=r"--elastic: .* is no share of the jobs"):
            Options().having("elastic", text)
    assert Options().having("elastic", "0.5").told()["elastic"] == "0.5"
    assert "elastic" not in Options().told()


def test_it_has_no_bound_and_is_not_played_with_merges() -> None:
    asked = Options().having("elastic", "0.5")
    assert not asked.has_bound
    with pytest.raises(InvalidInput, match="--elastic 0"):
        simulate(generate("seren", 5, 0), ["clairvoyant"], asked)
    with pytest.raises(InvalidInput, match="may be merged"):
        simulate(generate("seren", 5, 0), ["allpass"], asked.having("merge-able", "0.5"))


def test_figures_are_there_only_where_there_are_ranges() -> None:
    trace = generate("seren", 10, 0)
    with_, without = (
        simulate(trace, ["allpass"], Options().having("elastic", share), [0])["policies"]["allpass"]
        for share in ("1", "0")
    )
    beside = {
        "range_gpu_hours",
        "resizes",
        "lent_gpus",
        "grown_for_deadlines",
        "moved_smaller",
        "moved_larger",
    }
    assert set(with_) - set(without) == beside
    assert with_["range_gpu_hours"] > 0
