"""Deadline pressure by a demand bound function.

D(t, T) is the work, in GPU-milliseconds, of unfinished jobs that is due by t + T; C_t is what the rented GPUs do per
millisecond of time; p(t) = max over T of D(t, T) / (C_t T). Above 1, some deadline cannot be kept by the rented GPUs
alone (Allpass paper, section 4; a demand bound function as in real-time scheduling, Baruah et al. 1990).

What the paper leaves open is settled here: the windows are those that end at a deadline, up to a horizon; none is
shorter than a tick, and a job that is overdue is due within it; without demand p is 0; with demand and without a GPU
it is `MOST_PRESSURE`, as is everything above that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MOST_PRESSURE = 1e6
_BLOCK = 4096  # jobs at a time: what is computed of them stays in the processor's cache
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pressure:
    """`window_ms`: the window in which p is highest. `demand_gpu_ms`: D(t, horizon)."""

    p: float
    window_ms: int
    demand_gpu_ms: int


NO_PRESSURE = Pressure(0.0, 0, 0)


def pressure(
    deadlines_ms: Integers,
    remaining_gpu_ms: Integers,
    now_ms: int,
    *,
    capacity: float,
    horizon_ms: int,
    least_window_ms: int,
) -> Pressure:
    """p(t) of jobs in any order. `deadlines_ms` and `remaining_gpu_ms`: one value per unfinished job.

    `capacity`: C, GPU-milliseconds of reference work per millisecond. Raises ValueError for a window that is no time.
    """
    order = np.argsort(deadlines_ms, kind="stable")
    return pressure_of_sorted(
        deadlines_ms[order],
        remaining_gpu_ms[order],
        now_ms,
        capacity=capacity,
        horizon_ms=horizon_ms,
        least_window_ms=least_window_ms,
    )


def pressure_of_sorted(
    deadlines_ms: Integers,
    remaining_gpu_ms: Integers,
    now_ms: int,
    *,
    capacity: float,
    horizon_ms: int,
    least_window_ms: int,
) -> Pressure:
    """As `pressure`, of jobs that are sorted by deadline: linear in those due within the horizon."""
    if not 0 < least_window_ms <= horizon_ms:
        raise ValueError(f"windows go from {least_window_ms} to {horizon_ms} ms")
    due = int(np.searchsorted(deadlines_ms, now_ms + horizon_ms, side="right"))
    demand_gpu_ms, highest, window_ms = 0, 0.0, least_window_ms
    for first in range(0, due, _BLOCK):
        part = slice(first, min(first + _BLOCK, due))
        windows_ms = deadlines_ms[part] - now_ms
        np.maximum(windows_ms, least_window_ms, out=windows_ms)
        demand = np.cumsum(remaining_gpu_ms[part])
        demand += demand_gpu_ms
        demand_gpu_ms = int(demand[-1])
        ratios = demand / windows_ms
        place = int(ratios.argmax())
        if ratios[place] > highest:
            highest, window_ms = float(ratios[place]), int(windows_ms[place])
    if demand_gpu_ms == 0:
        return NO_PRESSURE
    p = highest / capacity if capacity > 0 else MOST_PRESSURE
    return Pressure(min(p, MOST_PRESSURE), window_ms, demand_gpu_ms)
