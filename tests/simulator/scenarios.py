"""Small scenarios with exact clocks, and simulations of which every decision is checked and written down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from app.core.board import Board
from app.core.invariants import job_of, plan_breaches, snapshot_breaches
from app.core.model.node import RENTED_TIERS, Tier
from app.core.model.plan import ActionKind, Plan
from app.core.model.snapshot import Snapshot
from app.core.policies import policy_named
from app.core.policy import PAPER_MOVE, MoveCost, PolicyConfig, PolicyState
from app.simulator.engine import Simulation
from app.simulator.outcomes import JobOutcome, SimulationResult
from app.simulator.prices import flat
from app.simulator.scenario import Scenario, SimulatedMarket, StartUp, Task
from tests.core.samples import RULES

SECOND_MS = 1_000
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NO_LIMIT = 10**6
PRICES = {Tier.SERVERLESS: 2.10, Tier.MARKETPLACE: 0.74, Tier.CONVENTIONAL: 1.29}
EVERY_ACTION = frozenset(ActionKind)
STARTS_S = {Tier.SERVERLESS: 4.0, Tier.MARKETPLACE: 36.0, Tier.CONVENTIONAL: 256.0}


def task(name: str, work_s: float, *, at_s: float = 0, due_s: float | None = None, **changes: Any) -> Task:
    """A job of one GPU whose run time is known. `due_s` counts from its submission; without it, ten times its work."""
    work_ms, submit_ms = round(work_s * 1000), round(at_s * 1000)
    values: dict[str, Any] = {
        "gpus": 1,
        "predicted_ms": work_ms,
        "deadline_ms": submit_ms + (10 * work_ms if due_s is None else round(due_s * 1000)),
    }
    return Task(name, submit_ms, work_ms, **(values | changes))


def market(*tiers: Tier, **changes: Any) -> SimulatedMarket:
    """Flat prices of these tiers, of all without any; machines start in exactly 4, 36 and 256 s."""
    values: dict[str, Any] = {
        "prices": {tier: flat(PRICES[tier]) for tier in tiers or RENTED_TIERS},
        "startups": {tier: StartUp(mean_s, 1.0) for tier, mean_s in STARTS_S.items()},
        "random_startups": False,
    }
    return SimulatedMarket(**(values | changes))


def config(**changes: Any) -> PolicyConfig:
    """Everything may be done, without limits; F is 300 s and idle nodes go back at once."""
    values: dict[str, Any] = {
        "capabilities": EVERY_ACTION,
        "serverless_budget_ms": 300_000,
        "serverless_limit": NO_LIMIT,
        "serverful_limit": NO_LIMIT,
        "idle_release_ms": 0,
        "rules": RULES,
    }
    return PolicyConfig(**(values | changes))


@dataclass(slots=True)
class Seen:
    """What a simulation went through: its decisions, and its actions as (second, kind, job or node)."""

    result: SimulationResult
    snapshots: list[tuple[Snapshot, PolicyState, Plan]] = field(default_factory=list)
    actions: list[tuple[float, str, str]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def outcome(self, name: str) -> JobOutcome:
        return next(one for one in self.result.outcomes if one.job_id == name)

    def of(self, kind: ActionKind) -> list[tuple[float, str]]:
        """When, and of which job or node."""
        return [(at_s, who) for at_s, what, who in self.actions if what == kind]

    def course(self) -> list[tuple[float, str]]:
        """When what was done, in order."""
        return [(at_s, kind) for at_s, kind, _ in self.actions]

    def signal(self, name: str) -> list[tuple[float, float]]:
        """The course of one signal, at the decisions that tell it."""
        told = ((seen.now_ms / 1000, dict(plan.signals)) for seen, _, plan in self.snapshots)
        return [(at_s, signals[name]) for at_s, signals in told if name in signals]


def simulate(
    policy: str,
    *tasks: Task,
    on: SimulatedMarket | None = None,
    using: PolicyConfig | None = None,
    moves: MoveCost = PAPER_MOVE,
    seed: int = 0,
    kind: type[Simulation] = Simulation,
    **changes: Any,
) -> Seen:
    """Play it to the end. Every board and every plan is held against the rules that hold for all policies."""
    settings = using if using is not None else config(moves=moves)
    seen = Seen(SimulationResult((), {}, 0, 0))
    before = PolicyState()
    in_vain: list[int] = []  # moments of the latest decisions, none of which did anything

    def watch(board: Board, plan: Plan, state: PolicyState) -> None:
        nonlocal before
        snapshot = board.snapshot()
        in_vain[:] = [] if plan.actions else [*in_vain[-50:], board.now_ms]
        assert len(in_vain) <= 50 or in_vain[-1] - in_vain[0] > SECOND_MS, "a policy asks to be woken without end"
        assert plan.wake_at_ms is None or plan.wake_at_ms > board.now_ms
        assert snapshot_breaches(snapshot) == []
        breaches = plan_breaches(snapshot, plan, settings)
        assert [one for one in breaches if settings.explains or not one.endswith("is told nothing")] == []
        seen.snapshots.append((snapshot, before, plan))
        before = state
        for action in plan.actions:
            seen.actions.append(
                (board.now_ms / 1000, action.kind.value, job_of(action) or getattr(action, "node_id", ""))
            )
            seen.reasons.append(action.reason)

    scenario = Scenario(tasks, on if on is not None else market(), seed, moves, **changes)
    seen.result = kind(scenario, policy_named(policy), settings, watch).run()
    return seen
