"""What is kept of speeds by number of GPUs, and what that says of a job that runs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.elastic.profile import MeasuredSpeed, batches_of, measured_speed
from app.core.elastic.size_table import KeptSpeed, kept_after, profile_of, shape_of


def kept(**speeds: float) -> dict[int, KeptSpeed]:
    return {int(name[1:]): KeptSpeed(speed, 0.01, 3) for name, speed in speeds.items()}


def own(**speeds: float) -> dict[int, MeasuredSpeed]:
    return {int(name[1:]): MeasuredSpeed(speed, 0.02) for name, speed in speeds.items()}


def test_of_another_size_of_step_the_proportions_count() -> None:
    """Jobs of this app took a step in a second and in half of one; this one takes ten with one GPU, and so five."""
    profile = profile_of(1, kept(g1=1.0, g2=2.0, g4=3.0), own(g1=0.1), {})
    assert [profile.speed(one) for one in (1, 2, 4)] == [0.1, 0.2, pytest.approx(0.3)]
    assert set(profile.measured) == {1, 2, 4}
    unlike = profile_of(1, kept(g1=1.0, g2=2.0), own(g3=7.0), {})
    assert set(unlike.measured) == {3}  # nothing that both know: what others did says nothing of it


def test_what_is_predicted_counts_where_nothing_was_measured() -> None:
    """In proportion to what was, and as itself before anything was; it is not taken for a measurement."""
    steps = {1: 1.0, 2: 2.0, 3: 2.0, 4: 4.0}
    before = profile_of(1, {}, {}, steps)
    assert [before.speed(one) for one in (1, 2, 3, 4)] == [1.0, 2.0, 2.0, 4.0]
    assert not before.measured
    after = profile_of(1, {}, own(g2=20.0), steps)
    assert [after.speed(one) for one in (1, 2, 3, 4)] == [10.0, 20.0, 20.0, 40.0]
    assert profile_of(1, {}, {}, {1: 1.0, 2: math.inf}).predicted == {}


def test_a_number_that_is_no_faster_ends_nothing() -> None:
    """Three of four parts take as long as two; four do not."""
    profile = profile_of(1, {}, own(g2=2.0, g3=2.0), {})
    assert profile.ceiling is None


@given(
    st.dictionaries(st.integers(-1, 99), st.floats(), max_size=6),
    st.dictionaries(st.integers(-1, 99), st.floats(), max_size=3),
    st.dictionaries(st.integers(1, 8), st.floats(), max_size=8),
    st.integers(1, 8),
)
def test_figures_that_are_none_spoil_nothing(
    others: dict[int, float], mine: dict[int, float], predicted: dict[int, float], asked: int
) -> None:
    """Rows of another release, hostile times: every speed that is asked for is a number that is not negative."""
    profile = profile_of(
        asked,
        {size: KeptSpeed(speed, 0.0, 1) for size, speed in others.items()},
        {size: MeasuredSpeed(speed, 0.0) for size, speed in mine.items()},
        predicted,
    )
    assert all(profile.speed(size) >= 0 for size in range(1, 9))
    assert all(0 < size <= 64 and 0 < one.speed < math.inf for size, one in profile.measured.items())


def test_newer_measurements_count_more_and_the_newest_noise_is_told() -> None:
    found = kept_after(None, MeasuredSpeed(1.0, 0.5))
    assert found == KeptSpeed(1.0, 0.5, 1)
    assert kept_after(found, MeasuredSpeed(2.0, 0.1)) == KeptSpeed(1.5, 0.1, 2)
    assert kept_after(KeptSpeed(1.0, 0.0, 50), MeasuredSpeed(2.0, 0.1)).steps_per_s == pytest.approx(1.3)


def test_a_shape_is_what_decides_the_length_of_a_step() -> None:
    """A rate or a seed makes no other shape; a batch does; and nothing stated is none."""
    one = shape_of("llama", {"method": "lora", "batch_size": "8", "steps": "9"})
    assert one == shape_of("llama", {"method": "lora", "batch_size": "8", "seed": 3})
    assert one != shape_of("llama", {"method": "lora", "batch_size": "16"})
    assert one != shape_of("qwen", {"method": "lora", "batch_size": "8"})
    assert shape_of(None, {"steps": 9}) == shape_of(None, None) == shape_of(7, "x") == ""


@pytest.mark.parametrize(
    ("points", "batches"),
    [
        ([(0, 0), (1, 9_000), (2, 10_000), (3, 11_000), (4, 12_000), (5, 13_000)], (1.0, 1.0, 1.0)),
        ([(10 * one, 1000 * one) for one in range(9)], (0.1, 0.1, 0.1)),
        ([(one, 1000 * one) for one in range(5)], ()),
        ([(one, 1000 * one) for one in (1, 2, 3, 5, 4, 6)], ()),
        ([], ()),
    ],
    ids=["each step", "now and then", "too few", "steps that go back", "none"],
)
def test_two_points_warm_up_and_three_groups_are_measured(
    points: list[tuple[int, int]], batches: tuple[float, ...]
) -> None:
    assert batches_of(points) == pytest.approx(batches)


@given(st.lists(st.integers(0, 10**13), max_size=70))
def test_whatever_a_machines_clock_says_a_speed_is_a_positive_number_or_none(times: list[int]) -> None:
    found = measured_speed(batches_of(list(enumerate(times))))
    assert found is None or (0 < found.speed < math.inf and found.noise >= 0)
