"""The serverless scaler: how long jobs may stay on serverless (F), steered by the pressure (paper, Algorithm 1).

Pressure above 1 means that the rented nodes alone cannot keep the deadlines: jobs may stay longer where they are.
Pressure below 1 means that there is room: they leave sooner, for cheaper GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BudgetRule:
    """Gains are per tick and unit of pressure, limits per tick (paper: G_up 10, R_up 100, G_dn 2, R_dn 30 s; F0 300 s).

    The paper gives F neither bounds nor a dead band; without them it grows without end when p stays above 1, and
    trembles around 1.
    """

    first_ms: int = 300_000
    least_ms: int = 60_000
    most_ms: int = 1_800_000
    up_gain_ms: int = 10_000
    up_most_ms: int = 100_000
    down_gain_ms: int = 2_000
    down_most_ms: int = 30_000
    dead_band: float = 0.05


PAPER_BUDGET = BudgetRule()


def next_budget_ms(rule: BudgetRule, budget_ms: float, p: float) -> float:
    """F at the next tick: up by G_up (p - 1), at most R_up; down by G_dn (1 - p), at most R_dn; within its bounds."""
    if p > 1 + rule.dead_band:
        budget_ms += min(rule.up_most_ms, rule.up_gain_ms * (p - 1))
    elif p < 1 - rule.dead_band:
        budget_ms -= min(rule.down_most_ms, rule.down_gain_ms * (1 - p))
    return min(max(budget_ms, rule.least_ms), rule.most_ms)
