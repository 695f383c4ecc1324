"""Machines for jobs to come: none for a project that wants none, a share for each of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.board import Board
from app.core.model.job import StartRule
from app.core.model.money import Money
from app.core.model.node import NodeState
from app.core.model.plan import Action, Plan, Provision, Release
from app.core.model.snapshot import JobView, NodeView, Snapshot
from app.core.policies import policy_named
from app.core.policy import PolicyConfig, PolicyState
from tests.core.plans import ask, brief
from tests.core.samples import ALL_ACTIONS, CONFIG, NOW_MS, OFFERS, job, node, snapshot, snapshots

AMPLE = replace(CONFIG, capabilities=ALL_ACTIONS, serverless_limit=100, serverful_limit=100)
PROJECTS = ("proj_a", "proj_b")
OFTEN = 10_000_000_000.0  # micro-dollars per hour that free nodes would have saved


def flows(**by_project: float) -> PolicyState:
    values = {f"reuse/{project}": micros for project, micros in by_project.items()}
    return PolicyState().having(seen_ms=float(NOW_MS), F_ms=300_000.0, ticked_ms=-1.0, **values)


def decide(seen: Snapshot, config: PolicyConfig = AMPLE, state: PolicyState | None = None) -> Plan:
    often = flows(**dict.fromkeys(PROJECTS, OFTEN))
    return policy_named("allpass").decide(Board.of(seen), state or often, config)[0]


def new_job(job_id: str, project_id: str) -> JobView:
    """One that starts on serverless at once, and whose like would have used a free node."""
    asked = {"submitted_ms": NOW_MS, "deadline_ms": NOW_MS + 36_000_000, "start": StartRule.NOW}
    return job(job_id, project_id=project_id, **asked)


def idle(node_id: str, project_id: str = "proj_a", **changes: object) -> NodeView:
    kept = {"idle_since_ms": NOW_MS, "price_per_hour": Money.usd("0.74"), "project_id": project_id}
    return node(node_id, **(kept | changes))


def ahead_of(plan: Plan) -> list[str]:
    return [action.project_id for action in plan.actions if isinstance(action, Provision) and action.ahead]


@given(snapshots(), st.sets(st.sampled_from(PROJECTS)), st.sampled_from([0, 1, 3, 100]))
def test_nothing_is_rented_ahead_for_a_project_that_wants_none(seen: Snapshot, off: set[str], limit: int) -> None:
    """Whatever the world and however often jobs come: no machine is rented ahead for it, and none of its free machines
    is left idle."""
    arriving = [new_job(f"job_new_{project}", project) for project in PROJECTS]
    seen = replace(seen, jobs=tuple(sorted((*seen.jobs, *arriving), key=lambda one: one.job_id)))
    plan = decide(replace(seen, no_ahead=tuple(sorted(off))), replace(AMPLE, serverful_limit=limit))
    assert off.isdisjoint(ahead_of(plan))


@given(snapshots())
def test_others_are_not_disturbed(seen: Snapshot) -> None:
    """What is decided for the other projects is the same, action for action, where the fleet has room; for the project
    itself all is that jobs get, without what was rented ahead and with what is given back."""
    arriving = [new_job(f"job_new_{project}", project) for project in PROJECTS]
    seen = replace(seen, jobs=tuple(sorted((*seen.jobs, *arriving), key=lambda one: one.job_id)))
    with_, without = decide(seen), decide(replace(seen, no_ahead=("proj_a",)))

    def of(plan: Plan, *, mine: bool) -> list[Action]:
        owners = {one.node_id: one.project_id for one in seen.nodes} | {one.job_id: one.project_id for one in seen.jobs}
        keys = {action: _subject(action) for action in plan.actions}
        return [action for action in plan.actions if (owners[keys[action]] == "proj_a") is mine]

    assert of(with_, mine=False) == of(without, mine=False)
    rented_ahead = [one for one in of(with_, mine=True) if isinstance(one, Provision) and one.ahead]
    kept = [one for one in of(with_, mine=True) if one not in rented_ahead and not isinstance(one, Release)]
    assert kept == [one for one in of(without, mine=True) if not isinstance(one, Release)]


def _subject(action: Action) -> str:
    if isinstance(action, Provision):
        return action.for_job_id
    return action.node_id if isinstance(action, Release) else action.job_id


def test_idle_machines_of_that_project_go_back_at_once() -> None:
    """Ready or booting, whatever free ones would have saved; those of others stay, and the reason says why."""
    nodes = [idle("node_a"), idle("node_b", "proj_b"), node("node_c", state=NodeState.BOOTING, idle_since_ms=None)]
    assert brief(decide(snapshot(now_ms=NOW_MS, nodes=nodes, offers=OFFERS))) == []
    plan = decide(snapshot(now_ms=NOW_MS, nodes=nodes, offers=OFFERS, no_ahead=("proj_a",)))
    assert sorted(brief(plan)) == [("release", "node_a"), ("release", "node_c")]
    assert all("has switched keeping machines for jobs to come off" in action.reason for action in plan.actions)


def test_what_came_before_is_forgotten_as_it_is_switched_off() -> None:
    """Nothing is kept for what is remembered of earlier jobs, nor for those that come while it is off."""
    seen = snapshot(now_ms=NOW_MS, jobs=[new_job("job_a", "proj_a")], offers=OFFERS, no_ahead=("proj_a",))
    _, after = ask("allpass", seen, AMPLE, flows(proj_a=OFTEN, proj_b=OFTEN))
    assert (after.get("reuse/proj_a", 0.0), after.get("reuse/proj_b", 0.0)) == (0.0, OFTEN)


def test_a_machine_of_that_project_is_kept_for_no_time_by_the_simple_policies_either() -> None:
    """fixed-threshold keeps an idle machine for as long as is settled; of this project, not at all."""
    config = replace(AMPLE, idle_release_ms=600_000)
    nodes = [idle("node_a", idle_since_ms=NOW_MS - 1), idle("node_b", "proj_b", idle_since_ms=NOW_MS - 1)]
    seen = snapshot(now_ms=NOW_MS, nodes=nodes, offers=OFFERS, no_ahead=("proj_a",))
    plan, _ = ask("fixed-threshold", seen, config)
    assert brief(plan) == [("release", "node_a")]


def test_a_burst_rents_ahead_no_more_than_its_share() -> None:
    """Two projects and four machines: the one that has two rents no third one ahead, and the other may rent two."""
    config = replace(AMPLE, serverful_limit=4)
    arriving = [new_job("job_a", "proj_a"), new_job("job_b", "proj_b")]
    held = [idle("node_1", gpu_type="T4", gpu_memory_bytes=1), idle("node_2", gpu_type="T4", gpu_memory_bytes=1)]
    seen = snapshot(now_ms=NOW_MS, jobs=arriving, nodes=held, offers=OFFERS)
    jobs = tuple(replace(one, resources=replace(one.resources, gpu_memory_bytes_min=2)) for one in arriving)
    assert ahead_of(decide(replace(seen, jobs=jobs), config)) == ["proj_b"]
    assert ahead_of(decide(replace(seen, jobs=jobs[:1]), config, flows(proj_a=OFTEN))) == ["proj_a"]


def test_a_full_fleet_is_not_kept_full_by_one_project_that_idles() -> None:
    """Beyond its share what is free goes back while the fleet is full, and stays while it is not."""
    nodes = [idle(f"node_{n}") for n in range(4)]
    seen = snapshot(now_ms=NOW_MS, nodes=nodes, offers=OFFERS)
    assert len(brief(decide(seen, replace(AMPLE, serverful_limit=4)))) == 2
    assert brief(decide(seen, replace(AMPLE, serverful_limit=5))) == []
    assert brief(decide(seen, replace(AMPLE, serverful_limit=4), flows(proj_a=OFTEN))) == []


def test_what_is_rented_ahead_counts_against_the_limit_at_once() -> None:
    """Two projects that both rent ahead in one decision get no more than there is room for."""
    jobs = [new_job("job_a", "proj_a"), new_job("job_b", "proj_b")]
    seen = snapshot(now_ms=NOW_MS, jobs=jobs, offers=OFFERS)
    assert len(ahead_of(decide(seen, replace(AMPLE, serverful_limit=1)))) == 1
    assert len(ahead_of(decide(seen, replace(AMPLE, serverful_limit=2)))) == 2


@pytest.mark.parametrize("off", [(), ("proj_a",)])
def test_the_switch_survives_a_board(off: tuple[str, ...]) -> None:
    """It is part of the snapshot, so that a decision can be taken again."""
    seen = snapshot(now_ms=NOW_MS, no_ahead=off)
    assert Board.of(seen).snapshot() == seen
