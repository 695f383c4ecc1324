"""What tasks have in common, and what that has been worth so far."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from app.core.merging.transfer import (
    IN_TURN,
    TOGETHER,
    GainLine,
    alignment,
    alignment_of,
    is_profile,
    mutual,
    score,
    scores,
)

FISHER = arrays(np.float64, 12, elements=st.floats(0, 1e3))


@given(FISHER, FISHER)
def test_a_score_is_a_share(one: np.ndarray, other: np.ndarray) -> None:
    """Between 0 and 1, the same both ways, however large the task's gradients are."""
    value = score(one, other)
    assert -1e-9 <= value <= 1 + 1e-9
    assert value == pytest.approx(score(other, one))


@given(arrays(np.float64, 12, elements=st.floats(0.01, 1e3)))
def test_a_task_is_closest_to_itself(one: np.ndarray) -> None:
    """Its score with itself is 1."""
    assert score(one, one) == pytest.approx(1.0)


def test_tasks_that_pull_at_other_weights_have_nothing_in_common() -> None:
    """Score 0; and the more they share, the higher it is."""
    left, right = np.array([1.0, 1.0, 0.0, 0.0]), np.array([0.0, 0.0, 1.0, 1.0])
    some = np.array([0.0, 1.0, 1.0, 0.0])
    assert score(left, right) == pytest.approx(0.0)
    assert score(left, right) < score(left, some) < score(left, left)
    assert scores([left, right, some]).diagonal().tolist() == [1.0, 1.0, 1.0]


@given(arrays(np.float64, 12, elements=st.floats(0.01, 1e3)), st.floats(0.01, 100))
def test_first_steps_align_by_their_direction_alone(one: np.ndarray, length: float) -> None:
    """Alignment 1 with itself, however long; 0 with its opposite, which no score of magnitudes tells apart."""
    assert alignment(one, length * one) == pytest.approx(1.0)
    assert alignment(one, -one) == 0.0
    assert score(one**2, (-one) ** 2) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        (np.ones(2), np.ones(3), "equal shapes"),
        (np.zeros(2), np.ones(2), "not zero"),
        (np.array([np.nan, 1.0]), np.ones(2), "finite"),
    ],
    ids=["shapes", "zero", "nan"],
)
def test_steps_that_cannot_be_compared_are_refused(one: np.ndarray, other: np.ndarray, why: str) -> None:
    """A profile that went wrong is no alignment of 0."""
    with pytest.raises(ValueError, match=why):
        alignment(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.ones(3), np.ones(4)),
        (np.ones(3), -np.ones(3)),
        (np.ones(3), np.array([1.0, np.nan, 1.0])),
    ],
)
def test_what_cannot_be_compared(one: np.ndarray, other: np.ndarray) -> None:
    """Unequal lengths, negative or broken numbers are told."""
    with pytest.raises(ValueError, match=r"equal shapes|never negative"):
        score(one, other)


@pytest.mark.parametrize(
    ("fisher", "pull", "is_one"),
    [
        ([0.0, 2.0], [0.0, -1.0], True),
        ([0.0], [1.0, 2.0, 3.0], True),
        ([1.0], [0.0, 0.0], False),
        ([1.0], [float("nan"), 1.0], False),
        ([1.0], [1e308, 1e308], False),
        ([-1.0], [1.0], False),
        ([float("inf")], [1.0], False),
    ],
    ids=["one", "of other lengths", "zero", "nan", "too long", "negative", "infinite"],
)
def test_what_can_be_compared_is_a_profile(fisher: list[float], pull: list[float], is_one: bool) -> None:
    """And what is kept of no task can be compared with none: that is no error of whoever asks."""
    assert is_profile(fisher, pull) is is_one
    with np.errstate(over="ignore"):
        compared = alignment_of(tuple(pull), tuple(pull))
    assert compared == pytest.approx(1.0) if is_profile([1.0], pull) else compared is None


def test_before_any_merge_the_prior_decides() -> None:
    """No gain in the middle, some above it, a loss below."""
    line = GainLine()
    assert line.gain(0.5) == pytest.approx(0.0)
    assert line.gain(1.0) == pytest.approx(0.25)
    assert line.gain(0.0) == pytest.approx(-0.25)


def test_side_by_side_less_is_promised_than_in_turn() -> None:
    """As measured, each a little below its line: little in common is no gain, much is one, and more of it in turn."""
    assert IN_TURN.gain(0.0) < 0 < IN_TURN.gain(0.2)
    assert TOGETHER.gain(0.2) < 0 < TOGETHER.gain(0.6) < IN_TURN.gain(0.6) < 0.75


@given(st.floats(-1, 3), st.floats(-1, 1))
def test_many_merges_outweigh_the_prior(slope: float, base: float) -> None:
    """After 4,000 merges on a line, the gains are that line's."""
    line = GainLine()
    for number in range(4000):
        seen = (number % 100) / 100
        line = line.learned(seen, base + slope * seen)
    for at in (0.1, 0.5, 0.9):
        assert line.gain(at) == pytest.approx(max(-0.9, base + slope * at), abs=0.05)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(-0.5, 2)), min_size=1, max_size=20))
def test_the_order_of_merges_does_not_matter(seen: list[tuple[float, float]]) -> None:
    """Learned forwards or backwards, the line is the same."""
    one, other = GainLine(), GainLine()
    for pair in seen:
        one = one.learned(*pair)
    for pair in reversed(seen):
        other = other.learned(*pair)
    assert one.gain(0.7) == pytest.approx(other.gain(0.7))


def test_one_surprise_moves_it_little() -> None:
    """A single merge that gained a lot is not believed at once."""
    line = GainLine().learned(0.5, 2.0)
    assert 0 < line.gain(0.5) < 0.5


def test_side_by_side_is_the_mean_of_both_directions() -> None:
    """Half of one and half of the other."""
    assert mutual(0.2, 0.6) == pytest.approx(0.4)
