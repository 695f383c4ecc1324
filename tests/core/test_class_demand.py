"""Places that some jobs may not have are no capacity for them: under `hpa` and under the paper's scalers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from app.core.board import Board
from app.core.demand import MOST_PRESSURE
from app.core.model.job import JobState, PriorityClass
from app.core.model.node import NodeState, Tier
from app.core.model.plan import Plan, Provision, Release
from app.core.model.snapshot import JobView, NodeView
from app.core.policies.paper import class_demands, highest
from app.core.spot_places import is_of_its_class, level_of_job, level_of_place
from tests.core.plans import ask
from tests.core.samples import CONFIG, MARKET, NOW_MS, job, node, run, snapshot, snapshots

HOUR_MS = 3_600_000
MANY = replace(CONFIG, serverful_limit=1_000, horizon_ms=HOUR_MS)
PAPER = "allpass-paper"
paper_and_drain = pytest.mark.parametrize("name", [PAPER, "allpass-drain"])


def bid(name: str, **changes: Any) -> NodeView:
    return node(name, **({"spot_only": True, "free_gpus": ()} | changes))


def spot(name: str, **changes: Any) -> JobView:
    return job(name, **({"priority_class": PriorityClass.SPOT} | changes))


def due(name: str, hours: float, **changes: Any) -> JobView:
    """Waits, and has so many hours left of an hour until its deadline."""
    values = {"deadline_ms": NOW_MS + HOUR_MS, "total_run_ms": int(hours * HOUR_MS), "serverless_used_ms": 10 * HOUR_MS}
    return job(name, JobState.WAITING, **(values | changes))


def on_bids(count: int) -> dict[str, list[Any]]:
    """Spot jobs that train, each on a node that was bid for."""
    names = [f"s{number}" for number in range(count)]
    return {
        "jobs": [spot(f"job_{one}", state=JobState.RUNNING, deadline_ms=NOW_MS + 100 * HOUR_MS) for one in names],
        "runs": [run(f"run_{one}", f"job_{one}", f"node_{one}", tier=Tier.MARKETPLACE) for one in names],
        "nodes": [bid(f"node_{one}") for one in names],
    }


def rented_for(plan: Plan) -> list[str]:
    return [one.for_job_id for one in plan.actions if isinstance(one, Provision)]


def given_back(plan: Plan) -> list[str]:
    return [one.node_id for one in plan.actions if isinstance(one, Release)]


@given(snapshots())
def test_levels_are_the_rule_of_who_may_have_what(seen: Any) -> None:
    for one in seen.jobs:
        for place in [*seen.nodes, *seen.offers]:
            assert is_of_its_class(one, place) == (level_of_place(place) <= level_of_job(one))


# hpa


def test_a_guaranteed_job_has_a_node_rented_however_many_bids_are_idle() -> None:
    """One of three nodes is in use, 33 %: none was rented, and the job waited for as long as the bids were there."""
    used = on_bids(1)
    idle = [bid(f"node_i{number}", free_gpus=(0,), idle_since_ms=NOW_MS) for number in range(2)]
    seen = snapshot(**{**used, "nodes": [*used["nodes"], *idle], "jobs": [*used["jobs"], job()]}, offers=[MARKET])
    plan, state = ask("hpa", seen, MANY)
    assert (rented_for(plan), given_back(plan)) == (["job_a"], ["node_i0"])
    assert state.get("wanted", 0) == 2, "of all nodes, one of which is in use"
    rents = plan.actions[0]
    assert rents.reason.endswith("0 % of 0 nodes are in use, 70 % are wanted")


def test_at_the_limit_idle_bids_make_room_for_it() -> None:
    used = on_bids(1)
    idle = bid("node_i", free_gpus=(0,), idle_since_ms=NOW_MS)
    seen = snapshot(**{**used, "nodes": [*used["nodes"], idle], "jobs": [*used["jobs"], job()]}, offers=[MARKET])
    assert given_back(ask("hpa", seen, replace(CONFIG, serverful_limit=2))[0]) == ["node_i"]


def test_a_spot_job_that_may_have_bids_is_counted_with_all_nodes() -> None:
    used = on_bids(7)
    line = [spot(f"job_w{number}", submitted_ms=number) for number in range(9)]
    seen = snapshot(**{**used, "jobs": [*used["jobs"], *line]}, offers=[MARKET])
    plan, _ = ask("hpa", seen, MANY)
    assert rented_for(plan) == ["job_w0", "job_w1", "job_w2"], "seven of ten"


def test_what_is_rented_for_those_without_bids_is_part_of_all() -> None:
    """Seven bids in use ask for three nodes more; the guaranteed job has the first of them."""
    used = on_bids(7)
    line = [*(spot(f"job_w{number}", submitted_ms=number) for number in range(9)), job("job_z", submitted_ms=100)]
    plan, _ = ask("hpa", snapshot(**{**used, "jobs": [*used["jobs"], *line]}, offers=[MARKET]), MANY)
    assert rented_for(plan) == ["job_z", "job_w0", "job_w1"]


def test_nodes_that_all_may_have_are_not_given_back_for_bids_that_are_idle() -> None:
    """Five bids are idle, and two of the three other nodes are in use, of which 2 / 0.7 makes three."""
    jobs = [job(f"job_{number}", JobState.RUNNING) for number in range(2)]
    runs = [run(f"run_{number}", f"job_{number}", f"node_{number}", tier=Tier.MARKETPLACE) for number in range(2)]
    busy = [node(f"node_{number}", free_gpus=()) for number in range(2)]
    idle = [node("node_2", idle_since_ms=NOW_MS)]
    bids = [bid(f"node_i{number}", free_gpus=(0,), idle_since_ms=NOW_MS) for number in range(5)]
    plan, _ = ask("hpa", snapshot(jobs=jobs, runs=runs, nodes=[*busy, *idle, *bids], offers=[MARKET]), MANY)
    assert given_back(plan) == [f"node_i{number}" for number in range(5)]


def test_without_bids_nothing_is_sized_twice() -> None:
    _, state = ask("hpa", snapshot(jobs=[job()], nodes=[node("node_a", free_gpus=())], offers=[MARKET]), MANY)
    assert [name for name, _ in state.values if name.startswith("figure")] == [f"figure_at_{NOW_MS}"]


# The paper's scalers


def test_work_is_held_against_the_nodes_that_its_jobs_may_have() -> None:
    """Four GPUs that were bid for, and one hour of guaranteed work that is due within the hour."""
    nodes = [bid(f"node_{number}") for number in range(4)]
    found = class_demands(Board.of(snapshot(jobs=[due("job_g", 1)], nodes=nodes)), MANY)
    assert [(one.level, one.capacity, one.seen.p) for one in found] == [(1, 0.0, MOST_PRESSURE), (2, 4.0, 0.25)]
    assert highest(found) == MOST_PRESSURE


def test_what_is_lent_is_no_capacity_for_guaranteed_jobs_and_bids_are_none_for_those_that_never_save() -> None:
    lent = node("node_l", Tier.OWN, gpu_count=2, spot_only=True, free_gpus=())
    nodes = [node("node_a", free_gpus=()), lent, bid("node_b", gpu_count=4)]
    jobs = [
        due("job_g", 1),
        due("job_n", 1, priority_class=PriorityClass.SPOT, never_saves=True),
        due("job_s", 1, priority_class=PriorityClass.SPOT),
    ]
    found = class_demands(Board.of(snapshot(jobs=jobs, nodes=nodes)), MANY)
    done = [(one.level, one.capacity, one.seen.demand_gpu_ms // HOUR_MS) for one in found]
    assert done == [(0, 1.0, 1), (1, 3.0, 2), (2, 7.0, 3)]


@paper_and_drain
def test_the_paper_rents_for_guaranteed_work_beside_bids(name: str) -> None:
    """Four idle GPUs were enough for it by the sum, and the job, which may have none of them, waited."""
    nodes = [bid(f"node_{number}") for number in range(4)]
    line = [due("job_s", 0.1, priority_class=PriorityClass.SPOT, checkpoint_step=1), due("job_g", 0.5)]
    plan, state = ask(name, snapshot(jobs=line, nodes=nodes, offers=[MARKET]), MANY)
    assert rented_for(plan)[0] == "job_g"
    (rents, *_) = [one for one in plan.actions if isinstance(one, Provision)]
    assert "asks for 1 GPUs more than there are beside what was bid for" in rents.reason
    assert state.get("F_ms", 0) == 400_000.0, "the pressure is that of the work that has no node"
    signals = dict(plan.signals)
    assert (signals["C"], signals["p"], signals["p_without_bids"]) == (4.0, MOST_PRESSURE, MOST_PRESSURE)


def test_what_is_rented_for_guaranteed_work_counts_for_all() -> None:
    """An hour of guaranteed work and two of spot jobs, on one GPU that was bid for: two more, one of each."""
    spots = [due(f"job_s{number}", 1, priority_class=PriorityClass.SPOT, checkpoint_step=1) for number in range(2)]
    seen = snapshot(jobs=[*spots, due("job_g", 1)], nodes=[bid("node_b")], offers=[MARKET])
    plan, _ = ask(PAPER, seen, MANY)
    assert len(rented_for(plan)) == 2
    assert rented_for(plan)[0] == "job_g"


def test_of_a_surplus_of_bids_no_other_node_is_given_back() -> None:
    """Half an hour of guaranteed work is due: its node stays, the bids go."""
    trains = replace(due("job_g", 0.5), state=JobState.RUNNING)
    held = run("run_g", "job_g", "node_g", tier=Tier.MARKETPLACE, running_since_ms=NOW_MS)
    idle = [bid(f"node_i{number}", free_gpus=(0,), idle_since_ms=NOW_MS) for number in range(3)]
    spare = node("node_j", idle_since_ms=NOW_MS)
    seen = snapshot(jobs=[trains], runs=[held], nodes=[node("node_g", free_gpus=()), spare, *idle], offers=[MARKET])
    assert given_back(ask(PAPER, seen, MANY)[0]) == ["node_i0", "node_i1", "node_i2", "node_j"]
    double = replace(trains, total_run_ms=int(1.5 * HOUR_MS))
    plan, _ = ask(PAPER, replace(seen, jobs=(double,)), MANY)
    assert "node_j" not in given_back(plan), "1.5 GPUs of the two that it may have"


@given(snapshots())
def test_pressure_is_never_lower_than_of_the_sum_and_the_same_without_bids(seen: Any) -> None:
    found = class_demands(Board.of(seen), CONFIG)
    assert highest(found) >= found[-1].seen.p
    assert found[-1].capacity == sum(found_capacity(one) for one in seen.nodes)
    plain = replace(seen, nodes=tuple(replace(one, spot_only=False) for one in seen.nodes))
    (alone,) = class_demands(Board.of(plain), CONFIG)
    assert alone == found[-1]


def found_capacity(one: NodeView) -> int:
    lasting = (NodeState.REQUESTED, NodeState.BOOTING, NodeState.READY, NodeState.UNREACHABLE, NodeState.UNKNOWN)
    return one.gpu_count if one.state in lasting and one.tier is not Tier.SERVERLESS else 0
