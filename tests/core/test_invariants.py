"""The checkers themselves: each rule catches the plan or the snapshot that breaks it."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from typing import Any

import pytest

from app.core import invariants
from app.core.invariants import INVARIANTS, plan_breaches, snapshot_breaches
from app.core.model.job import Caps, JobState, Resources
from app.core.model.merge import MergeMode
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, NodeState, ProviderTraits, Tier
from app.core.model.plan import (
    ActionKind,
    Assign,
    Demote,
    Merge,
    Migrate,
    Plan,
    Preempt,
    Provision,
    Release,
    Start,
    Waiting,
)
from app.core.model.run import RunPurpose, RunState
from app.core.model.snapshot import Snapshot
from app.core.policy import AllpassRules
from tests.core.merging.mergeable import merge_of, mergeable
from tests.core.samples import CONFIG, MARKET, NOW_MS, OFFERS, SERVERLESS, job, node, on_serverless, run, snapshot

HELD = job("job_r", JobState.RUNNING)
RUN, PLACE = on_serverless(HELD, 400_000)
READY = node("node_x", gpu_count=2, idle_since_ms=0)
JOB_A, JOB_B = job("job_a"), job("job_b", JobState.WAITING)
SEEN = snapshot(
    jobs=[JOB_A, JOB_B, HELD], runs=[RUN], nodes=[PLACE, READY, node("node_y", idle_since_ms=0)], offers=OFFERS
)

START = Start("job_a", SERVERLESS, "why", (("job_a", 1),))
ASSIGN = Assign("job_b", "node_x", (0,), "why", (("job_b", 1), ("node_x", 1)))
DEMOTE = Demote("job_r", "run_r", "why", (("job_r", 1), ("run_r", 1)))
RELEASE = Release("node_y", "why", (("node_y", 1),))
PROVISION = Provision("proj_a", "job_b", MARKET, "why", (("job_b", 1),))
PREEMPT = Preempt("job_r", "run_r", "why", (("job_r", 1), ("run_r", 1)))
MIGRATE = Migrate("job_r", "run_r", "node_x", (0,), "why", (("job_r", 1), ("node_x", 1), ("run_r", 1)))
ON_NODE = snapshot(
    jobs=SEEN.jobs,
    runs=[replace(RUN, tier=Tier.MARKETPLACE)],
    nodes=[replace(PLACE, tier=Tier.MARKETPLACE), *(kept for kept in SEEN.nodes if kept.node_id != PLACE.node_id)],
)
ANYTHING = {"capabilities": frozenset(ActionKind)}
GOOD = Plan("x", (START, ASSIGN, DEMOTE, RELEASE))


def with_job(changed: Any) -> Snapshot:
    others = [kept for kept in SEEN.jobs if kept.job_id != changed.job_id]
    return replace(SEEN, jobs=snapshot(jobs=[*others, changed]).jobs)


def with_node(changed: Any) -> Snapshot:
    others = [kept for kept in SEEN.nodes if kept.node_id != changed.node_id]
    return replace(SEEN, nodes=snapshot(nodes=[*others, changed]).nodes)


def plan(*actions: Any, told: tuple[str, ...] = ("job_a", "job_b")) -> Plan:
    given = {getattr(action, "job_id", None) or getattr(action, "for_job_id", None) for action in actions}
    return Plan("x", actions, tuple(Waiting(job_id, "why") for job_id in told if job_id not in given))


def test_a_good_plan_has_no_breach() -> None:
    """The plan that all the others differ from passes."""
    assert snapshot_breaches(SEEN) == []
    assert plan_breaches(SEEN, GOOD, CONFIG) == []
    assert plan_breaches(SEEN, plan(PROVISION), CONFIG) == []
    assert plan_breaches(SEEN, plan(ASSIGN, PROVISION), CONFIG) == []  # rented in its name, for others to come
    assert plan_breaches(SEEN, plan(MIGRATE), replace(CONFIG, **ANYTHING)) == []
    assert plan_breaches(ON_NODE, plan(PREEMPT), replace(CONFIG, **ANYTHING)) == []


CAPPED = {"caps": Caps(max_cost=Money(5)), "spent": Money(5)}


ONE, OTHER = mergeable("job_a"), mergeable("job_b")
BOTH = (("job_a", 1), ("job_b", 1))
MERGE = Merge("job_a", "job_b", MergeMode.TOGETHER, 1, 0.9, 0.2, "why", BOTH)
LOOK = replace(START, purpose=RunPurpose.PROFILE)
FRESH = replace(ONE, recipe=replace(ONE.recipe, pull=()))
MERGES: dict[str, Any] = {"merging": True, **ANYTHING}


def recipes(*jobs: Any, **changes: Any) -> Snapshot:
    return replace(snapshot(jobs=jobs, offers=OFFERS), **changes)


@pytest.mark.parametrize(
    ("seen", "broken", "config", "words"),
    [
        (recipes(ONE, OTHER), plan(MERGE), {"merge_modes": frozenset({MergeMode.IN_TURN})}, "together, which is off"),
        (recipes(ONE, replace(OTHER, done_ms=5)), plan(MERGE), {}, "job_b has progress and is merged together"),
        (recipes(ONE, replace(OTHER, checkpoint_step=5)), plan(replace(MERGE, mode=MergeMode.IN_TURN)), {}, "progress"),
        (recipes(ONE, mergeable("job_b", recipe={"settings": "x"})), plan(MERGE), {}, "train with different settings"),
        (recipes(ONE, OTHER), plan(LOOK), {}, "job_a is profiled already"),
        (recipes(replace(FRESH, done_ms=5), OTHER), plan(LOOK), {}, "has progress, and is profiled"),
        (recipes(FRESH, OTHER), plan(LOOK), {"merging": False}, "job_a cannot be merged and is profiled"),
        (SEEN, plan(LOOK), {}, "job_a cannot be merged and is profiled"),
        (recipes(FRESH, OTHER, merges=(merge_of("job_b", "job_a"),)), plan(LOOK), {}, "cannot be merged and is"),
        (recipes(FRESH, OTHER), plan(LOOK), {"rules": AllpassRules(merge_profile_most=0)}, "0 + 1 jobs are profiled"),
        (
            replace(SEEN, runs=(replace(RUN, job_ids=("job_r", "job_s")),)),
            plan(MIGRATE),
            {},
            "run_r of job_r is train of 2 jobs and is moved",
        ),
    ],
    ids=[
        "mode off", "progress together", "progress in turn", "settings", "twice", "profile with progress", "off",
        "code of its own", "merged", "too many", "pair moved",
    ],
)  # fmt: skip
def test_each_breach_of_merging_is_caught(seen: Snapshot, broken: Plan, config: dict[str, Any], words: str) -> None:
    """What must never be merged, nor looked at, nor moved as two."""
    breaches = plan_breaches(seen, broken, replace(CONFIG, **(MERGES | config)))
    assert any(words in breach for breach in breaches), breaches


def test_a_good_merge_and_a_good_look_have_no_breach() -> None:
    """What those differ from passes."""
    assert plan_breaches(recipes(ONE, OTHER), plan(MERGE), replace(CONFIG, **MERGES)) == []
    assert plan_breaches(recipes(FRESH, OTHER), plan(LOOK), replace(CONFIG, **MERGES)) == []


@pytest.mark.parametrize(
    ("seen", "broken", "config", "words"),
    [
        (SEEN, plan(START), {"capabilities": frozenset({ActionKind.DEMOTE})}, "start cannot be enacted"),
        (SEEN, plan(replace(START, reason="")), {}, "gives no reason"),
        (SEEN, plan(replace(START, versions=())), {}, "out of order, twice or not at all"),
        (SEEN, plan(replace(START, versions=(("job_a", 2),))), {}, "version 2 of job_a, which has 1"),
        (SEEN, plan(replace(ASSIGN, versions=(("job_b", 1),))), {}, "which version of node_x it saw"),
        (SEEN, plan(replace(ASSIGN, versions=ASSIGN.versions[::-1])), {}, "out of order"),
        (SEEN, plan(replace(DEMOTE, versions=(("job_r", 1),))), {}, "which version of run_r it saw"),
        (SEEN, plan(ASSIGN, replace(START, job_id="job_b", versions=(("job_b", 1),))), {}, "job_b is given 2 actions"),
        (SEEN, plan(START), {"serverless_limit": 1}, "1 + 1 serverless nodes are more than 1"),
        (SEEN, plan(PROVISION), {"serverful_limit": 2}, "2 + 1 serverful nodes are more than 2"),
        (with_job(replace(JOB_A, state=JobState.PAUSED)), plan(START), {}, "job_a is paused and is given a place"),
        (with_job(replace(JOB_A, not_before_ms=NOW_MS + 1)), plan(START), {}, "job_a backs off"),
        (with_job(replace(JOB_A, **CAPPED)), plan(START), {}, "cost cap and is given start"),
        (with_job(replace(JOB_B, **CAPPED)), plan(PROVISION), {}, "cost cap and is given provision"),
        (SEEN, plan(replace(PROVISION, project_id="proj_b")), {}, "the node would belong to proj_b"),
        (
            replace(
                with_job(replace(JOB_B, resources=Resources(base_image="own"))),
                traits=(
                    ProviderTraits(
                        MARKET.provider,
                        MARKET.tier,
                        BillingRule(1, BillingStart.READY),
                        1,
                        2,
                        1,
                        False,
                        False,
                        takes_images=False,
                    ),
                ),
            ),
            plan(PROVISION),
            {},
            "wants image own and is given local/ask, no container",
        ),
        (
            SEEN,
            plan(ASSIGN, replace(ASSIGN, job_id="job_a", versions=(("job_a", 1), ("node_x", 1)))),
            {},
            "given twice",
        ),
        (SEEN, plan(replace(ASSIGN, gpu_indices=(0, 0))), {}, "given twice"),
        (SEEN, plan(replace(ASSIGN, gpu_indices=(2,))), {}, "that are not free"),
        (with_job(replace(JOB_B, resources=Resources(gpus_min=2))), plan(ASSIGN), {}, "needs 2 GPUs and is given 1"),
        (with_node(replace(READY, state=NodeState.DRAINING)), plan(ASSIGN), {}, "node_x, which is draining"),
        (with_node(replace(READY, project_id="proj_b")), plan(ASSIGN), {}, "given a node of proj_b"),
        (with_node(replace(READY, image="own:1")), plan(ASSIGN), {}, "given node_x with own:1"),
        (SEEN, plan(replace(DEMOTE, run_id="run_z", versions=())), {}, "is no running run of it"),
        (
            snapshot(jobs=SEEN.jobs, runs=[replace(RUN, state=RunState.STOPPING)], nodes=SEEN.nodes),
            plan(DEMOTE),
            {},
            "is no running run of it",
        ),
        (ON_NODE, plan(DEMOTE), {}, "is not serverless and is demoted"),
        (SEEN, plan(PREEMPT), ANYTHING, "is serverless and is preempted"),
        (ON_NODE, plan(replace(MIGRATE, node_id="node_r", gpu_indices=())), ANYTHING, "is moved to where it is"),
        (SEEN, plan(replace(MIGRATE, gpu_indices=(5,))), ANYTHING, "that are not free"),
        (SEEN, plan(MIGRATE, replace(RELEASE, node_id="node_x", versions=(("node_x", 1),))), ANYTHING, "holds a run"),
        (SEEN, plan(ASSIGN, replace(RELEASE, node_id="node_x", versions=(("node_x", 1),))), {}, "node_x holds a run"),
        (SEEN, plan(replace(RELEASE, node_id="node_r", versions=(("node_r", 1),))), {}, "node_r holds a run"),
        (
            with_node(replace(READY, free_gpus=(1,))),
            plan(Release("node_x", "why", (("node_x", 1),))),
            {},
            "holds a run",
        ),
        (SEEN, plan(RELEASE, RELEASE), {}, "node_y is released twice"),
        (SEEN, plan(START, told=()), {}, "job_b is waiting and is told nothing"),
        (SEEN, Plan("x", (START,), (Waiting("job_b", ""),)), {}, "job_b is waiting and is told nothing"),
    ],
)
def test_each_rule_catches_its_breach(seen: Snapshot, broken: Plan, config: dict[str, Any], words: str) -> None:
    """A plan that breaks one rule is named for it."""
    found = plan_breaches(seen, broken, replace(CONFIG, **config))
    assert any(words in breach for breach in found), found


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (replace(SEEN, nodes=(READY,)), "run_r is live on node_r, which is gone"),
        (with_node(replace(PLACE, free_gpus=(0,))), "all of whose GPUs are free"),
        (with_node(replace(READY, free_gpus=(0, 0))), "[0, 0] are said to be free"),
        (with_node(replace(READY, free_gpus=(2,))), "has 2 GPUs, and [2] are said to be free"),
        (replace(SEEN, runs=(RUN, replace(RUN, run_id="run_z"))), "2 live runs hold job_r"),
    ],
)
def test_each_broken_world_is_named(seen: Snapshot, words: str) -> None:
    """A snapshot that contradicts itself is named for what is wrong."""
    assert any(words in breach for breach in snapshot_breaches(seen)), snapshot_breaches(seen)


def test_a_move_may_have_two_runs() -> None:
    """The prepared target of a move beside its source is no double holder."""
    target = node("node_t", Tier.MARKETPLACE, free_gpus=())
    standby = run("run_t", "job_r", "node_t", RunState.STANDBY, tier=Tier.MARKETPLACE, running_since_ms=None)
    assert snapshot_breaches(snapshot(jobs=SEEN.jobs, runs=[RUN, standby], nodes=[*SEEN.nodes, target])) == []


def test_every_invariant_that_may_be_broken_is_listed() -> None:
    """Monitoring shows each from the start: an alarm on a growing count needs to have seen none."""
    source = inspect.getsource(invariants)
    assert set(re.findall(r'\bBreach\(\s*"(\w+)"', source)) == set(INVARIANTS)
