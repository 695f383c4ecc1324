"""Deadline pressure: by hand, at its edges, and against the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.demand import _BLOCK, MOST_PRESSURE, NO_PRESSURE, Pressure, pressure, pressure_of_sorted

NOW_MS = 1_000_000
HORIZON_MS = 1_800_000
TICK_MS = 60_000


def seen(*jobs: tuple[int, int], capacity: float = 1.0, **changes: Any) -> Pressure:
    """The pressure of jobs of (milliseconds until the deadline, GPU-milliseconds left)."""
    frame = {"horizon_ms": HORIZON_MS, "least_window_ms": TICK_MS} | changes
    return pressure(*arrays(jobs), NOW_MS, capacity=capacity, **frame)


def arrays(jobs: Any, factor: int = 1) -> tuple[Any, Any]:
    deadlines = np.array([NOW_MS + factor * due for due, _ in jobs], dtype=np.int64)
    return deadlines, np.array([factor * left for _, left in jobs], dtype=np.int64)


def test_one_job() -> None:
    """Ten minutes of work due in twenty minutes are half of what one GPU can do until then."""
    assert seen((1_200_000, 600_000)) == Pressure(0.5, 1_200_000, 600_000)


def test_work_adds_up_to_each_deadline() -> None:
    """p is the worst window: 9 of 10 minutes, then 9 + 15 of 20 minutes, then 24 + 1 of 30."""
    jobs = (600_000, 540_000), (1_200_000, 900_000), (1_800_000, 60_000)
    assert seen(*jobs) == Pressure(1.2, 1_200_000, 1_500_000)
    assert seen(jobs[2], jobs[0], jobs[1]) == seen(*jobs)


def test_capacity_divides() -> None:
    """Two GPUs halve the pressure, and so does a fraction of one raise it."""
    assert seen((1_200_000, 600_000), capacity=2.0).p == 0.25
    assert seen((1_200_000, 600_000), capacity=0.5).p == 1.0


def test_work_of_one_deadline_counts_together() -> None:
    """Jobs of the same deadline share one window."""
    assert seen((600_000, 300_000), (600_000, 300_000)).p == 1.0


def test_overdue_work_is_due_within_a_tick() -> None:
    """A job that is late, or due in less than a tick, has a tick to be done in."""
    late = seen((-5_000_000, 120_000))
    assert late == Pressure(2.0, TICK_MS, 120_000)
    assert seen((1, 120_000)) == late
    assert seen((-1, 60_000), (30_000, 60_000)).p == 2.0


def test_the_horizon_is_where_demand_ends() -> None:
    """A deadline at the horizon counts, one a millisecond later does not."""
    assert seen((HORIZON_MS, 900_000)).p == 0.5
    assert seen((HORIZON_MS + 1, 900_000)) == NO_PRESSURE


@pytest.mark.parametrize("capacity", [0.0, 3.0])
@pytest.mark.parametrize("jobs", [(), ((600_000, 0),), ((HORIZON_MS * 2, 900_000),)])
def test_no_demand_is_no_pressure(jobs: Any, capacity: float) -> None:
    """Without work due there is no pressure, whether there are GPUs or not."""
    assert seen(*jobs, capacity=capacity) == NO_PRESSURE


def test_demand_without_a_gpu_is_the_most_pressure() -> None:
    """Work that nothing can do presses as much as can be said, at the first deadline, and the demand is told."""
    assert seen((900_000, 1), (600_000, 5), capacity=0.0) == Pressure(MOST_PRESSURE, 600_000, 6)


def test_pressure_is_a_number_with_a_bound() -> None:
    """However little capacity there is, p stays finite."""
    assert seen((600_000, 10**12), capacity=1e-9).p == MOST_PRESSURE


@pytest.mark.parametrize("least_ms", [0, -1, HORIZON_MS + 1])
def test_windows_must_be_time(least_ms: int) -> None:
    """A least window that is no time, or longer than the horizon, is refused."""
    with pytest.raises(ValueError, match=f"windows go from {least_ms} to {HORIZON_MS} ms"):
        seen((1, 1), least_window_ms=least_ms)


queues = st.lists(st.tuples(st.integers(-2 * HORIZON_MS, 2 * HORIZON_MS), st.integers(0, 10 * HORIZON_MS)), max_size=12)
capacities = st.sampled_from([0.25, 1.0, 3.0, 40.0])
quick = settings(max_examples=80)


def by_definition(jobs: list[tuple[int, int]], capacity: float) -> float:
    """max over T of D(T) / (C T), window by window."""
    windows = {max(due, TICK_MS) for due, _ in jobs if due <= HORIZON_MS}
    demand = {end: sum(left for due, left in jobs if max(due, TICK_MS) <= end) for end in windows}
    return max((demand[end] / (capacity * end) for end in windows), default=0.0)


@quick
@given(queues, capacities)
def test_equals_its_definition(jobs: list[tuple[int, int]], capacity: float) -> None:
    """p is the highest ratio over all windows, and its window is one where it is reached."""
    found = seen(*jobs, capacity=capacity)
    assert found.p == pytest.approx(min(by_definition(jobs, capacity), MOST_PRESSURE), rel=1e-12)
    assert found.demand_gpu_ms == sum(left for due, left in jobs if due <= HORIZON_MS)
    due_then = sum(left for due, left in jobs if max(due, TICK_MS) <= found.window_ms <= HORIZON_MS)
    assert found == NO_PRESSURE or found.p == pytest.approx(due_then / (capacity * found.window_ms), rel=1e-12)


def test_long_queues() -> None:
    """Far more jobs than are looked at in one go: the same definition, wherever the worst window is."""
    jobs = [(place * 16, 8 if place % 97 else 5_000) for place in range(3 * _BLOCK + 7)]
    for peak in (10, _BLOCK - 1, _BLOCK, 2 * _BLOCK + 5):
        due = [*jobs, (peak * 16, 40 * HORIZON_MS)]
        frame = {"horizon_ms": 16 * len(jobs), "least_window_ms": 1_000}
        deadlines, left = (np.array(column, dtype=np.int64) for column in zip(*sorted(due), strict=True))
        demand = np.cumsum(left)
        highest = float((demand / np.maximum(deadlines, 1_000)).max())
        found = pressure(deadlines + NOW_MS, left, NOW_MS, capacity=300.0, **frame)
        assert found.p == pytest.approx(highest / 300)
        assert found.window_ms == max(1_000, peak * 16)
        assert found.demand_gpu_ms == int(demand[-1])


@quick
@given(queues, capacities, st.randoms(use_true_random=False))
def test_order_does_not_matter(jobs: list[tuple[int, int]], capacity: float, random: Any) -> None:
    """Jobs in any order press as sorted ones do."""
    frame = {"capacity": capacity, "horizon_ms": HORIZON_MS, "least_window_ms": TICK_MS}
    in_order = pressure_of_sorted(*arrays(sorted(jobs)), NOW_MS, **frame)
    assert seen(*random.sample(jobs, len(jobs)), capacity=capacity) == in_order


@quick
@given(queues, capacities, st.integers(2, 50))
def test_only_ratios_of_times_matter(jobs: list[tuple[int, int]], capacity: float, factor: int) -> None:
    """All times k times as long leave p as it is."""
    longer = pressure(
        *arrays(jobs, factor),
        NOW_MS,
        capacity=capacity,
        horizon_ms=factor * HORIZON_MS,
        least_window_ms=factor * TICK_MS,
    )
    found = seen(*jobs, capacity=capacity)
    assert (longer.p, longer.window_ms) == (found.p, factor * found.window_ms)


@quick
@given(queues, capacities, st.tuples(st.integers(-HORIZON_MS, HORIZON_MS), st.integers(0, HORIZON_MS)))
def test_more_work_never_presses_less(jobs: list[tuple[int, int]], capacity: float, more: tuple[int, int]) -> None:
    """p rises with demand and falls with capacity."""
    found = seen(*jobs, capacity=capacity).p
    assert seen(*jobs, more, capacity=capacity).p >= found
    assert seen(*jobs, capacity=2 * capacity).p <= found
