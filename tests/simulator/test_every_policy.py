"""What holds of a simulation under every policy, on drawn workloads and markets."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from app.core import billing
from app.core.board import Board
from app.core.codec import dumps, loads
from app.core.model.node import BillingStart, NodeState
from app.core.model.plan import ActionKind
from app.core.model.snapshot import NodeView, Snapshot
from app.core.policies import policy_named, policy_names
from app.core.policy import PolicyState
from app.simulator.scenario import BILLING
from tests.simulator.golden import GOLDEN, figures
from tests.simulator.scenarios import Seen, config, simulate
from tests.simulator.workloads import markets, workload_for

every_policy = pytest.mark.parametrize("name", policy_names())
CONFIGS = (
    config(),
    config(serverful_limit=3),
    config(capabilities=config().capabilities - {ActionKind.MIGRATE, ActionKind.PREEMPT}, idle_release_ms=60_000),
)


def played(name: str, seed: int) -> Seen:
    return simulate(name, *workload_for(name, seed), on=markets(seed), using=CONFIGS[seed // 3], seed=seed)


@every_policy
@pytest.mark.parametrize("seed", range(6))
def test_jobs_finish_and_bills_are_right(name: str, seed: int) -> None:
    """Every job gets its work done, never faster than it can; the bills are those of the machines that were seen."""
    seen = played(name, seed)
    tasks = workload_for(name, seed)
    assert [one.job_id for one in seen.result.outcomes] == [task.job_id for task in tasks]
    for task, done in zip(tasks, seen.result.outcomes, strict=True):
        assert done.started_ms is not None
        assert task.submit_ms <= done.started_ms
        assert done.jct_ms >= task.work_ms
        assert done.faults or done.jct_ms >= task.work_ms + done.move_ms
        assert done.missed == (done.finished_ms > task.deadline_ms)
        assert len(done.tiers) >= 1 + done.moves
        assert done.cost_usd > 0
    assert seen.result.bills == recomputed_bills(seen)
    assert sum(one.cost_usd for one in seen.result.outcomes) < 1.0001 * seen.result.cost_usd + 0.05


def recomputed_bills(seen: Seen) -> dict[str, int]:
    """From the nodes on the boards alone: from when each was seen until it was gone, by the provider's rule."""
    first: dict[str, NodeView] = {}
    ready_ms: dict[str, int] = {}
    gone_ms: dict[str, int] = {}
    for snapshot, _, plan in seen.snapshots:
        there = {node.node_id: node for node in snapshot.nodes}
        for node_id, node in there.items():
            first.setdefault(node_id, node)
            if node.state == NodeState.READY:
                ready_ms.setdefault(node_id, snapshot.now_ms)
        released = {action.node_id for action in plan.actions if action.kind == ActionKind.RELEASE}
        for node_id in [known for known in first if known not in there] + sorted(released):
            gone_ms.setdefault(node_id, snapshot.now_ms)
    end_ms = max(one.finished_ms for one in seen.result.outcomes)
    bills = Counter({node.provider: 0 for node in first.values()})
    for node_id, node in first.items():
        at_request = BILLING[node.tier].starts == BillingStart.REQUEST
        since_ms = node.requested_ms if at_request else ready_ms.get(node_id)
        if since_ms is not None:
            until_ms = gone_ms.get(node_id, end_ms)
            bills[node.provider] += billing.cost(BILLING[node.tier], node.price_per_hour, since_ms, until_ms).micros
    return dict(bills)


@every_policy
def test_same_seed_same_history(name: str) -> None:
    """Twice the same scenario: the same outcomes, bills, actions and reasons."""
    first, second = played(name, 1), played(name, 1)
    assert first.result == second.result
    assert (first.actions, first.reasons) == (second.actions, second.reasons)


@every_policy
def test_recorded_snapshots_give_the_same_plans(name: str) -> None:
    """A snapshot written down in the simulator and read back gives the plan, byte for byte, that the simulator got."""
    settings = CONFIGS[1]
    seen = played(name, 4)
    for snapshot, state, plan in seen.snapshots[::3]:
        read = loads(Snapshot, dumps(snapshot))
        remembered = loads(PolicyState, dumps(state))
        again, _ = policy_named(name).decide(Board.of(read), remembered, settings)
        assert dumps(again) == dumps(plan)


@every_policy
def test_words_cost_nothing(name: str) -> None:
    """Without explanations everything goes the same way."""
    told = simulate(name, *workload_for(name, 2), on=markets(2), using=config(serverful_limit=2))
    silent = simulate(name, *workload_for(name, 2), on=markets(2), using=config(serverful_limit=2, explains=False))
    assert silent.result == told.result
    assert silent.actions == told.actions


@every_policy
def test_golden_run(name: str) -> None:
    """The figures of one small run, as they were when they were last looked at: see `tests/simulator/golden.py`."""
    golden = json.loads(GOLDEN.read_text())
    assert sorted(golden) == sorted(policy_names())
    assert figures(name) == golden[name]
