"""What a simulation looked like over time: the queue, the machines by tier, F, and the prices at which it rented."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from app.core.board import Board
from app.core.model.money import MICROS_PER_USD
from app.core.model.node import Tier
from app.core.model.plan import Plan, Provision, Start
from app.core.policy import PolicyState

MOST_RENTS = 3000
SAMPLES = 600
BUNCHED_SHARE = 0.3


@dataclass(slots=True)
class Dynamics:
    """Samples at rising times, from the first submission; all lists but `rents` are of one length.

    `queue`: the most jobs without a place since the last sample. `budget_s`: F, or None where a policy has none.
    `rents`: time, tier and dollars per GPU-hour. `bunched`: the jobs come early and run long, so that samples are
    closer together in the beginning.
    """

    times_s: list[float] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)
    machines: dict[Tier, list[int]] = field(default_factory=lambda: {tier: [] for tier in Tier})
    budget_s: list[float | None] = field(default_factory=list)
    rents: list[tuple[float, Tier, float]] = field(default_factory=list)
    bunched: bool = False


class CourseRecorder:
    """Watches a simulation of jobs that are submitted from `first_ms` to `last_ms` and would be done by `end_ms` if
    none waited. `fixed_budget_s`: the F of a policy that never changes it."""

    def __init__(self, first_ms: int, last_ms: int, end_ms: int, fixed_budget_s: float | None = None) -> None:
        self._first_ms, self._span_ms = first_ms, max(1, end_ms - first_ms)
        self.seen = Dynamics(bunched=last_ms - first_ms < BUNCHED_SHARE * self._span_ms)
        self._fixed_budget_s = fixed_budget_s
        self._next_ms = first_ms
        self._queue = 0
        self._skipped = self._stride = 1

    def __call__(self, board: Board, plan: Plan, state: PolicyState) -> None:
        self._queue = max(self._queue, board.placeable_count)
        for action in plan.actions:
            if isinstance(action, Provision | Start) and action.offer.tier != Tier.OWN:
                offer = action.offer
                usd = offer.price_per_hour.micros / offer.gpu_count / MICROS_PER_USD
                self._rented(self._passed_s(board), offer.tier, usd)
        if board.now_ms >= self._next_ms:
            self._sample(board, state)
            self._next_ms = board.now_ms + self._gap_ms(board.now_ms - self._first_ms)

    def _gap_ms(self, passed_ms: int) -> int:
        """Even gaps; where the jobs are bunched, even ones between the square roots of times."""
        share = 2 * math.sqrt(passed_ms / self._span_ms) if self.seen.bunched else 1.0
        return max(1, int(self._span_ms * max(share, 1 / SAMPLES) / SAMPLES))

    def _passed_s(self, board: Board) -> float:
        return (board.now_ms - self._first_ms) / 1000

    def _sample(self, board: Board, state: PolicyState) -> None:
        seen = self.seen
        many = Counter(node.tier for node in board.nodes.values())
        seen.times_s.append(self._passed_s(board))
        seen.queue.append(self._queue)
        seen.machines[Tier.SERVERLESS].append(board.serverless_nodes)
        for tier in Tier:
            if tier != Tier.SERVERLESS:
                seen.machines[tier].append(many[tier])
        budget_ms = state.get("F_ms", -1.0)
        seen.budget_s.append(budget_ms / 1000 if budget_ms >= 0 else self._fixed_budget_s)
        self._queue = 0

    def _rented(self, at_s: float, tier: Tier, usd: float) -> None:
        """Kept for every n-th rent, where there are many."""
        if self._skipped < self._stride:
            self._skipped += 1
            return
        self._skipped = 1
        self.seen.rents.append((at_s, tier, usd))
        if len(self.seen.rents) > MOST_RENTS:
            del self.seen.rents[1::2]
            self._stride *= 2
