"""What one more GPU brings to a job, and what the loss of one takes: equation 1 of the paper, and ours.

All functions take a job's useful sizes, rising, and its speeds at them; `place` is an index into both, -1 for no GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.core.elastic.rules import ElasticRules


def gain_per_gpu(sizes: Sequence[int], speeds: Sequence[float], place: int, rules: ElasticRules) -> float:
    """Of the step from this size to the next, in units of the speed on the first size; 0 at the last size.

    `literal` is S_j = (T_{j+1} - T_j) / (T_2 - T_1) with S_1 = 1, which has no unit of its own: a job that gains 5 %
    for each GPU has the S of one that gains 100 %. Where T_2 <= T_1 it is 0 (the paper divides by it).
    """
    if place + 1 >= len(sizes):
        return 0.0
    if place < 0:
        return 1.0 / sizes[0]
    gained = (speeds[place + 1] - speeds[place]) / (sizes[place + 1] - sizes[place])
    if not rules.by_own_second_gpu:
        return gained / speeds[0] if speeds[0] > 0 else 0.0
    second = (speeds[1] - speeds[0]) / (sizes[1] - sizes[0])
    if second <= 0:
        return 0.0
    return 1.0 if place == 0 else gained / second


def loss_per_gpu(sizes: Sequence[int], speeds: Sequence[float], place: int, rules: ElasticRules) -> float:
    """Of the step down from this size, in the same units. `literal` takes the gain of the next GPU in its place, as
    Algorithm 3 does; at the last size, where the paper has no value, that of the last step."""
    if rules.preempts_by_gain:
        return gain_per_gpu(sizes, speeds, min(place, len(sizes) - 2), rules) if len(sizes) > 1 else 1.0
    return gain_per_gpu(sizes, speeds, place - 1, rules)


def gain_per_dollar(gain: float, price_micros_per_h: int) -> float:
    """Speed gained for each dollar an hour; infinite on a GPU that costs nothing and brings something.

    Raises ValueError for a negative price."""
    if price_micros_per_h < 0:
        raise ValueError(f"a price is 0 or more, not {price_micros_per_h}")
    if price_micros_per_h == 0:
        return float("inf") if gain > 0 else 0.0
    return gain * 1_000_000 / price_micros_per_h


HYSTERESIS = 2.0  # a resize has to bring this many times what it costs


def is_worth_resizing(before: float, after: float, remaining_s: float, cost_s: float) -> bool:
    """Whether what is left, at the new speed and after the pause, ends by so much earlier that the saved time is worth
    the cost with its margin. `remaining_s` is at the speed before."""
    if after <= before:
        return False
    return remaining_s * (1 - before / after) > HYSTERESIS * cost_s
