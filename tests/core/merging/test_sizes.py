"""Dealing out GPUs exactly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.merging.sizes import best_sizes, best_split, cost_curve

SIZES = np.array([1, 2, 4])
ROWS = st.lists(st.lists(st.floats(0, 9), min_size=4, max_size=4), min_size=1, max_size=4)


def by_trying(costs: np.ndarray, gpus: int) -> float:
    weights = [0, *SIZES.tolist()]
    choices = itertools.product(range(4), repeat=len(costs))
    fits = [one for one in choices if sum(weights[column] for column in one) <= gpus]
    return min(float(sum(row[column] for row, column in zip(costs, one, strict=True))) for one in fits)


@given(ROWS, st.integers(0, 9))
def test_the_least_sum(rows: list[list[float]], gpus: int) -> None:
    """As by trying all; the columns that are named add up to it and fit."""
    costs = np.array(rows)
    total, columns = best_sizes(costs, SIZES, gpus)
    assert total == pytest.approx(by_trying(costs, gpus))
    assert float(costs[np.arange(len(costs)), columns].sum()) == pytest.approx(total)
    assert int(np.concatenate([[0], SIZES])[columns].sum()) <= gpus
    assert cost_curve(costs, SIZES, gpus)[-1] == pytest.approx(total)


@given(ROWS, ROWS, ROWS, ROWS, st.integers(0, 9))
def test_parts_with_two_curves(
    a: list[list[float]], b: list[list[float]], c: list[list[float]], d: list[list[float]], gpus: int
) -> None:
    """The best of all ways to choose one of two for each part."""
    parts = [(np.array(a), np.array(b)), (np.array(c), np.array(d))]
    curves = [(cost_curve(one, SIZES, gpus), cost_curve(other, SIZES, gpus)) for one, other in parts]
    cost, choices = best_split(curves, gpus)
    every = [by_trying(np.concatenate([x, y]), gpus) for x in parts[0] for y in parts[1]]
    assert cost == pytest.approx(min(every))
    chosen = np.concatenate([pair[choice] for pair, choice in zip(parts, choices, strict=True)])
    assert by_trying(chosen, gpus) == pytest.approx(cost)


def test_no_way_to_fit() -> None:
    """When zero GPUs are not allowed and one is too few, that is told."""
    with pytest.raises(ValueError, match="no choice"):
        best_sizes(np.array([[np.inf, np.inf, 1.0, 1.0]]), SIZES, 1)
