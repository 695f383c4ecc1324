"""Rule 9 of `allpass` by example, and in any state: who is alone on a larger node leaves for what costs less in all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from app.core.board import Board
from app.core.job_prices import job_micros
from app.core.model.job import JobState, Resources, StartRule
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.plan import Migrate, Plan, Provision
from app.core.model.snapshot import JobView, NodeView, RunView, Snapshot
from app.core.policies import policy_named
from app.core.policy import PolicyConfig, PolicyState
from tests.core.plans import brief
from tests.core.samples import (
    ALL_ACTIONS,
    CLOUD,
    CONFIG,
    MARKET,
    SERVERLESS,
    job,
    node,
    run,
    snapshot,
    snapshots,
)

HOUR_MS = 3_600_000
AT_MS = 100_000_000
CALM = PolicyState().having(seen_ms=float(AT_MS), F_ms=300_000.0, ticked_ms=float(AT_MS))
ALL = replace(CONFIG, capabilities=ALL_ACTIONS, serverless_limit=100, serverful_limit=100)


def large(name: str = "node_l", held: int = 1, price: str = "5.60", **changes: Any) -> NodeView:
    """Eight GPUs at $0.70 each, of which the first ones are held."""
    free = tuple(range(held, 8))
    return node(name, gpu_count=8, free_gpus=free, price_per_hour=Money.usd(price), **changes)


def trains(
    name: str = "a", on: str = "node_l", tier: Tier = Tier.MARKETPLACE, **changes: Any
) -> tuple[JobView, RunView]:
    """For five hours, of twenty."""
    values: dict[str, Any] = {"submitted_ms": 0, "deadline_ms": 10**9, "start": StartRule.AUTO, "saves": True}
    values |= {"total_run_ms": 20 * HOUR_MS}
    live = run(f"run_{name}", f"job_{name}", on, tier=tier, running_since_ms=AT_MS - 5 * HOUR_MS)
    return job(f"job_{name}", JobState.RUNNING, **(values | changes)), live


def seen(*holders: tuple[JobView, RunView], nodes: tuple[NodeView, ...] = (), **parts: Any) -> Snapshot:
    jobs, runs = [one for one, _ in holders], [live for _, live in holders]
    values: dict[str, Any] = {"offers": (SERVERLESS, MARKET, CLOUD), "jobs": jobs, "runs": runs}
    return snapshot(now_ms=AT_MS, nodes=nodes or (large(),), **(values | parts))


def decide(state: Snapshot, config: PolicyConfig = ALL, before: PolicyState = CALM) -> Plan:
    return policy_named("allpass").decide(Board.of(state), before, config)[0]


def test_the_last_one_on_eight_gpus_rents_one_of_its_own() -> None:
    """A GPU of the market costs more than an eighth of the node does, and a seventh of all of it."""
    plan = decide(seen(trains()))
    assert brief(plan) == [("provision", "job_a", "ask")]


def test_it_waits_for_what_comes_and_goes_there_when_it_is_ready() -> None:
    ready = node("node_x", price_per_hour=Money.usd("0.74"), idle_since_ms=AT_MS)
    coming = replace(ready, state=ready.state.BOOTING, idle_since_ms=None, expected_ready_ms=AT_MS + 20_000)
    assert brief(decide(seen(trains(), nodes=(large(), coming)))) == []
    plan = decide(seen(trains(), nodes=(large(), ready)))
    assert brief(plan) == [("migrate", "job_a", "node_x", "0")]
    assert "nobody else has any of the 8 GPUs there, of which it has 1" in plan.actions[0].reason


def test_it_goes_beside_another_job_where_its_share_is_all_that_it_adds() -> None:
    """Of two that are alone on eight GPUs one goes to the other, and the other one stays with it."""
    both = (large("node_l"), large("node_m", price="6.40"))
    plan = decide(seen(trains(total_run_ms=60 * HOUR_MS), trains("b", "node_m"), nodes=both))
    assert brief(plan) == [("migrate", "job_b", "node_l", "1")]


def test_whoever_has_company_stays() -> None:
    assert brief(decide(seen(trains(), trains("b"), nodes=(large(held=2),)))) == []
    arrives = job("job_n", submitted_ms=AT_MS, deadline_ms=10**9, total_run_ms=HOUR_MS)
    plan = decide(seen(trains(), jobs=[trains()[0], arrives]), before=CALM)
    assert ("assign", "job_n", "node_l", "1") in brief(plan)
    assert not any(one[0] in ("migrate", "provision") for one in brief(plan))


def test_whoever_needs_what_it_has_stays() -> None:
    needs = Resources(gpus_min=8, gpus_max=8)
    assert brief(decide(seen(trains(resources=needs), nodes=(large(held=8),)))) == []


def test_a_range_that_has_grown_is_not_weighed_by_its_least() -> None:
    assert brief(decide(seen(trains(resources=Resources(gpus_min=1, gpus_max=8)), nodes=(large(held=4),)))) == []


@pytest.mark.parametrize(
    ("flow", "moves"),
    [(4_600_000.0, True), (4_800_000.0, False)],  # $5.60 less the flow, against $0.74 / 0.9
)
def test_jobs_that_come_make_the_rest_of_the_node_worth_its_price(flow: float, moves: bool) -> None:
    before = PolicyState().having(**{"seen_ms": float(AT_MS), "F_ms": 300_000.0, "ticked_ms": float(AT_MS)})
    before = before.having(**{"reuse/proj_a": flow})
    assert bool(brief(decide(seen(trains()), before=before))) is moves


@pytest.mark.parametrize(
    "changes",
    [{"total_run_ms": 5 * HOUR_MS + 60_000}, {"locked": True}, {"leaving": True}, {"not_moved_before_ms": AT_MS + 1}],
)
def test_it_stays_where_a_move_would_not_pay_or_is_not_to_be(changes: dict[str, Any]) -> None:
    assert brief(decide(seen(trains(**changes)))) == []


def test_own_machines_are_paid_for_however_they_are_used() -> None:
    own = large(tier=Tier.OWN)
    assert brief(decide(seen(trains(tier=Tier.OWN), nodes=(own,)))) == []


def test_a_machine_of_its_own_that_is_as_large_is_none() -> None:
    """The market has eights alone: all of one would be paid for there as well."""
    eights = replace(MARKET, gpu_count=8, price_per_hour=Money.usd("5.50"), cpus=64)
    assert brief(decide(seen(trains(), offers=(SERVERLESS, eights)))) == []
    cheaper = replace(eights, price_per_hour=Money.usd("4.00"))
    assert brief(decide(seen(trains(), offers=(SERVERLESS, cheaper)))) == [("provision", "job_a", "ask")]


def test_not_where_moves_break_before_they_make() -> None:
    assert brief(decide(seen(trains()), replace(ALL, capabilities=CONFIG.capabilities))) == []


@given(snapshots())
@settings(max_examples=150)
def test_whoever_is_moved_pays_less_in_all(state: Snapshot) -> None:
    """Of what a plan does, no job that is alone goes to where
    an hour of its work costs more than all of its node does, and nobody is moved twice or rented for while it moves."""
    board = Board.of(state)
    plan = policy_named("allpass").decide(board, PolicyState(), ALL)[0]
    moved = [one.job_id for one in plan.actions if isinstance(one, Migrate)]
    rented = [one.for_job_id for one in plan.actions if isinstance(one, Provision)]
    assert len(set(moved)) == len(moved)
    assert not set(moved) & set(rented)
    for one in plan.actions:
        if isinstance(one, Migrate):
            source, target = board.nodes[board.runs[one.run_id].node_id], board.nodes[one.node_id]
            mine = board.jobs[one.job_id]
            share = job_micros(target, mine) * mine.resources.gpus_min // target.gpu_count
            assert source.node_id != target.node_id
            assert share < job_micros(source, mine)
