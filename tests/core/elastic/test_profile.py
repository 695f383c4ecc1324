"""What is known of a job's speed at each size."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.elastic.profile import SpeedProfile
from app.core.elastic.rules import LITERAL, MENDED
from app.core.elastic.scaling import gain_per_dollar, gain_per_gpu, is_worth_resizing, loss_per_gpu


def test_before_anything_is_measured_speed_is_linear_to_the_request_and_flat_beyond() -> None:
    """Point 5: no GPU has to be idle to find out."""
    profile = SpeedProfile(3)
    assert [profile.speed(one) for one in range(7)] == [0, 1, 2, 3, 3, 3, 3]
    assert profile.sizes() == (1, 2, 3, 4, 5, 6)


def test_two_batches_warm_up_and_three_are_measured() -> None:
    profile = SpeedProfile(2).with_batches(2, (9.0, 8.0, 0.5, 0.4, 0.6))
    assert profile.speed(2) == pytest.approx(2.0)
    assert profile.measured[2].noise == pytest.approx(0.2)
    assert profile.speed(1) == pytest.approx(1.0)
    assert profile.speed(4) == pytest.approx(2.0)


@pytest.mark.parametrize("batch_s", [(), (1.0,) * 4, (1, 1, 1, 1, math.nan), (1, 1, 0, 1, 1), (1, 1, 1, math.inf, 1)])
def test_batches_that_show_nothing_change_nothing(batch_s: tuple[float, ...]) -> None:
    profile = SpeedProfile(2)
    assert profile.with_batches(2, batch_s) is profile


def test_a_larger_size_that_is_no_faster_is_the_last_that_is_tried() -> None:
    """Point 5: profiling stops when the speed falls; the request itself stays allowed."""
    profile = SpeedProfile(2).with_batches(2, (1.0,) * 5).with_batches(3, (1.0,) * 5)
    assert profile.sizes() == (1, 2)


@given(st.integers(1, 40), st.integers(1, 3), st.sampled_from((None, 1, 2, 7, 16, 30)), st.booleans())
def test_every_size_is_faster_than_the_one_below(replicas: int, unit: int, shards: int | None, elastic: bool) -> None:
    """Point 9: sizes that do not divide the shards and bring no round less are left out."""
    profile = SpeedProfile(replicas * unit, unit, shards, elastic)
    sizes = profile.sizes()
    assert all(size % unit == 0 and size <= 2 * profile.request for size in sizes)
    assert all(profile.rounds(one) > profile.rounds(other) for one, other in pairwise(sizes))
    assert elastic or sizes == (profile.request,)


def test_shards_make_a_staircase() -> None:
    """V = 4: one, two, two, four times the speed of one process. The literal prior is linear at three."""
    assert SpeedProfile(4, shards=4).sizes() == (1, 2, 4)
    assert [SpeedProfile(4, shards=4).speed(one) for one in (1, 2, 3, 4)] == [1, 2, 2, 4]
    assert SpeedProfile(4).speed(3) == 3


@pytest.mark.parametrize(("request_gpus", "unit", "shards"), [(0, 1, None), (-4, 1, None), (3, 2, None), (1, 1, 0)])
def test_impossible_jobs_are_refused(request_gpus: int, unit: int, shards: int | None) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        SpeedProfile(request_gpus, unit, shards)


def test_equation_1_and_ours() -> None:
    """Points 1 and 2, in figures."""
    sizes, flat, steep = (1, 2, 3), (1.0, 1.05, 1.1), (1.0, 2.0, 3.0)
    assert gain_per_gpu(sizes, flat, 1, LITERAL) == pytest.approx(gain_per_gpu(sizes, steep, 1, LITERAL))
    assert gain_per_gpu(sizes, flat, 1, MENDED) == pytest.approx(0.05)
    assert gain_per_gpu(sizes, steep, 1, MENDED) == pytest.approx(1.0)
    assert gain_per_gpu(sizes, (1.0, 0.9, 0.8), 1, LITERAL) == 0.0
    assert gain_per_gpu(sizes, steep, 2, MENDED) == 0.0
    knee = (1.0, 2.0, 2.0)
    assert loss_per_gpu(sizes, knee, 1, MENDED) == 1.0
    assert loss_per_gpu(sizes, knee, 1, LITERAL) == 0.0
    assert loss_per_gpu(sizes, steep, 2, LITERAL) == 1.0


def test_gain_for_a_dollar() -> None:
    assert gain_per_dollar(0.5, 2_000_000) == 0.25
    assert gain_per_dollar(0.5, 0) == math.inf
    assert gain_per_dollar(0.0, 0) == 0.0
    with pytest.raises(ValueError, match="-1"):
        gain_per_dollar(1.0, -1)


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0, 1e6))
def test_a_resize_that_is_worth_it_saves_more_than_it_costs(
    before: float, after: float, remaining_s: float, cost_s: float
) -> None:
    if is_worth_resizing(before, after, remaining_s, cost_s):
        assert cost_s + remaining_s * before / after < remaining_s
