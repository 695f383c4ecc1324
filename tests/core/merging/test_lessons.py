"""What a merge is said to have been worth, from steps alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.merging.lessons import LEAST, MOST, seen_gain


@pytest.mark.parametrize(
    ("taken", "alone", "gain"),
    [
        ([100], [150.0], 0.5),
        ([100], [100.0], 0.0),
        ([200], [100.0], -0.5),
        ([60, 90], [100.0, 200.0], 1.0),
        ([1], [10_000.0], MOST),
        ([10_000], [1.0], LEAST),
        ([100], [None], None),
        ([60, 90], [100.0, None], None),
        ([0], [100.0], None),
        ([], [], None),
    ],
    ids=["half", "nothing", "harm", "both", "most", "least", "nobody alike", "one unknown", "no step", "nobody"],
)
def test_steps_alone_over_steps_merged_less_one(
    taken: list[int], alone: list[float | None], gain: float | None
) -> None:
    """Of one job or of both; nothing where steps are not known, and never more than one pair may teach."""
    assert seen_gain(taken, alone) == pytest.approx(gain)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.none() | st.floats(0, 1e9)), max_size=2))
def test_a_lesson_is_within_bounds_or_none(steps: list[tuple[int, float | None]]) -> None:
    """Whatever jobs report, the line learns a number that it can bear, or nothing."""
    found = seen_gain([taken for taken, _ in steps], [alone for _, alone in steps])
    assert found is None or LEAST <= found <= MOST
