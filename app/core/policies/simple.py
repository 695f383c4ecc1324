"""Baselines without a move: `modal-only` and `cheapest-first`."""

from __future__ import annotations

from app.core.board import Board
from app.core.model.plan import ActionKind, Plan
from app.core.policies.plan_builder import PlanBuilder
from app.core.policy import PolicyConfig, PolicyState


class ModalOnly:
    """Every job runs on serverless from its first step to its last: the dearest, and the quickest to start."""

    name = "modal-only"
    uses = frozenset({ActionKind.START})
    moves_by_budget = False

    def decide(self, board: Board, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]:
        desk = PlanBuilder(board, config)
        for job in board.placeable():
            if desk.holds_back(job):
                continue
            choice = desk.outlook.serverless.choose(job) if desk.outlook.may_start() else None
            if choice is None:
                desk.wait(job, desk.outlook.nothing_at_all(job))
            else:
                desk.start(job, choice)
        return desk.plan(self.name), state


class CheapestFirst:
    """A broker: every job gets a new machine of the cheapest offer that fits, which is given back when it ends."""

    name = "cheapest-first"
    uses = frozenset({ActionKind.ASSIGN, ActionKind.PROVISION, ActionKind.RELEASE})
    moves_by_budget = False

    def decide(self, board: Board, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]:
        desk = PlanBuilder(board, config)
        for job in board.placeable():
            if desk.holds_back(job):
                continue
            if desk.outlook.serverful_possible(job):
                desk.place_serverful(job)
            else:
                desk.wait(job, desk.outlook.nothing_serverful(job))
        desk.release_idle_after(0)
        return desk.plan(self.name), state
