"""What a policy is: a pure function from a snapshot to a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from app.core.model.plan import ActionKind, Plan
from app.core.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What a policy remembers from one decision to the next, as plain numbers by name. Stored with each tick."""

    values: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """Settings that a decision may read, and the actions that this world can enact."""

    capabilities: frozenset[ActionKind]
    serverless_budget_ms: int  # F: how long a job's code may run on serverless before it must move
    serverless_limit: int  # nodes at once
    serverful_limit: int
    idle_release_ms: int  # how long an idle node is kept before it is released


class Policy(Protocol):
    """Same snapshot, state and config: same plan, byte for byte."""

    name: str
    uses: frozenset[ActionKind]

    def decide(self, snapshot: Snapshot, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]: ...
