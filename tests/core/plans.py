"""Plans in short, and the snapshots that several tests of a policy begin from."""

from __future__ import annotations

from app.core.board import Board
from app.core.model.job import JobState
from app.core.model.plan import Assign, Demote, Migrate, Plan, Preempt, Provision, Start
from app.core.model.run import RunState
from app.core.model.snapshot import Snapshot
from app.core.policies import policy_named
from app.core.policy import PolicyConfig, PolicyState
from tests.core.samples import (
    CONFIG,
    OFFERS,
    job,
    on_serverless,
    snapshot,
)

F_MS = CONFIG.serverless_budget_ms


def ask(
    name: str, seen: Snapshot, config: PolicyConfig = CONFIG, state: PolicyState | None = None
) -> tuple[Plan, PolicyState]:
    """What a policy decides on this snapshot, and what it remembers."""
    return policy_named(name).decide(Board.of(seen), state or PolicyState(), config)


def decide(seen: Snapshot, config: PolicyConfig = CONFIG) -> Plan:
    plan, state = policy_named("fixed-threshold").decide(Board.of(seen), PolicyState((("kept", 1.0),)), config)
    assert state == PolicyState((("kept", 1.0),))
    return plan


def brief(plan: Plan) -> list[tuple[str, ...]]:
    """Kind, and who and where, of each action."""
    found: list[tuple[str, ...]] = []
    for action in plan.actions:
        if isinstance(action, Start):
            found.append(("start", action.job_id, action.offer.offer_id))
        elif isinstance(action, Demote | Preempt):
            found.append((action.kind.value, action.job_id, action.run_id))
        elif isinstance(action, Migrate):
            found.append(("migrate", action.job_id, action.node_id, *map(str, action.gpu_indices)))
        elif isinstance(action, Assign):
            found.append(("assign", action.job_id, action.node_id, *map(str, action.gpu_indices)))
        elif isinstance(action, Provision):
            found.append(("provision", action.for_job_id, action.offer.offer_id))
        else:
            found.append(("release", action.node_id))
    return found


def why(plan: Plan, job_id: str = "job_a") -> str:
    return {waiting.job_id: waiting.reason for waiting in plan.waiting}[job_id]


def spent_job(name: str = "job_a", **changes: object):
    """A job that has used up its serverless budget and waits."""
    return job(name, JobState.WAITING, **({"serverless_used_ms": F_MS} | changes))


def running(ran_ms: int, **changes: object) -> Snapshot:
    held = job(state=JobState.RUNNING, row_version=4, **changes)
    live, place = on_serverless(held, ran_ms, row_version=2)
    return snapshot(jobs=[held], runs=[live], nodes=[place], offers=OFFERS)


def saving(used_ms: int, **changes: object) -> Snapshot:
    held = job(state=JobState.CHECKPOINTING, **changes)
    live, place = on_serverless(held, used_ms, state=RunState.STOPPING)
    return snapshot(jobs=[held], runs=[live], nodes=[place], offers=OFFERS)
