"""`fixed-threshold` by example: demand to come, nodes given back, and the frame of a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.model.job import Caps, JobState, Resources
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.plan import ActionKind, Release
from app.core.model.run import RunState
from app.core.model.snapshot import Snapshot
from app.core.policies import policy_named, policy_names
from app.errors import InvalidInput
from tests.core.plans import F_MS, brief, decide, running, saving, spent_job, why
from tests.core.samples import (
    CONFIG,
    GIB,
    NOW_MS,
    OFFERS,
    job,
    node,
    offer,
    on_serverless,
    run,
    snapshot,
)

# Coming demand


def test_node_boots_while_the_job_saves() -> None:
    """A job that saves to leave serverless already has its node rented."""
    assert brief(decide(saving(F_MS))) == [("provision", "job_a", "ask")]


def test_saving_job_counts_on_the_node_rented_for_it() -> None:
    """Once its node boots, a saving job rents no second one, and is told what comes next."""
    seen = saving(F_MS)
    plan = decide(replace(seen, nodes=(*seen.nodes, node("node_x", state=NodeState.BOOTING))))
    assert brief(plan) == []
    assert why(plan) == (
        "saves a checkpoint and leaves serverless; then: waits for node_x (local A100, $0.70/h): it boots, "
        "expected in 20 s"
    )


def test_node_that_a_saving_job_needs_is_kept() -> None:
    """An idle node is kept for a job that is about to come, and released when none is."""
    idle = node("node_x", idle_since_ms=NOW_MS - 5_000)
    seen = saving(F_MS)
    assert brief(decide(replace(seen, nodes=(*seen.nodes, idle)))) == []
    assert brief(decide(snapshot(nodes=[idle], offers=OFFERS))) == [("release", "node_x")]


def test_waiting_jobs_come_before_coming_ones() -> None:
    """A free GPU goes to a job that can use it now, not to an earlier deadline that is still saving."""
    seen = saving(F_MS, deadline_ms=1)
    seen = replace(seen, jobs=(*seen.jobs, spent_job("job_b", deadline_ms=9)), nodes=(*seen.nodes, node("node_x")))
    assert brief(decide(seen)) == [("assign", "job_b", "node_x", "0"), ("provision", "job_a", "ask")]


@pytest.mark.parametrize(
    "seen",
    [
        saving(F_MS - 5_000),  # its user pauses it
        saving(F_MS, caps=Caps(max_cost=Money(1)), spent=Money(1)),  # its cap is reached
        snapshot(
            jobs=[job(state=JobState.CHECKPOINTING, serverless_used_ms=F_MS)],
            runs=[run("run_a", "job_a", "node_x", RunState.STOPPING, tier=Tier.MARKETPLACE)],
            nodes=[node("node_x", free_gpus=())],
            offers=OFFERS,
        ),
    ],
)
def test_no_node_for_a_job_that_pauses(seen: Snapshot) -> None:
    """Saving because of a pause, a cap or from a rented node is no demand for a new one."""
    assert brief(decide(seen)) == []


def test_backing_off_job_keeps_its_node_but_rents_none() -> None:
    """A job in back-off keeps an idle node that it will need, and no new one is rented for it yet."""
    later = spent_job(not_before_ms=NOW_MS + 9_000)
    idle = node("node_x", idle_since_ms=NOW_MS - 5_000)
    assert brief(decide(snapshot(jobs=[later], nodes=[idle], offers=OFFERS))) == []
    assert brief(decide(snapshot(jobs=[later], offers=OFFERS))) == []


# Releasing


def test_releases_after_the_idle_time() -> None:
    """An idle node is kept for the idle time, to the millisecond; the loop is woken when it is over."""
    config = replace(CONFIG, idle_release_ms=30_000)
    early = decide(snapshot(nodes=[node("node_x", idle_since_ms=NOW_MS - 29_999)]), config)
    assert (brief(early), early.wake_at_ms) == ([], NOW_MS + 1)
    plan = decide(snapshot(nodes=[node("node_x", idle_since_ms=NOW_MS - 30_000, row_version=6)]), config)
    assert brief(plan) == [("release", "node_x")]
    assert plan.actions[0].versions == (("node_x", 6),)
    assert plan.actions[0].reason == (
        "ends the rent of node_x (local A100, $0.70/h): idle for 30 s, kept for 30 s, and no job needs it"
    )


def test_releases_the_dearest_first_and_keeps_the_cheapest() -> None:
    """Of idle nodes a coming job keeps the cheapest; the others go, dearest first, ties by id."""
    prices = {"node_a": "0.50", "node_b": "0.90", "node_c": "2.00", "node_d": "0.90"}
    idle = [node(name, price_per_hour=Money.usd(price), idle_since_ms=0) for name, price in prices.items()]
    seen = saving(F_MS)
    plan = decide(replace(seen, nodes=tuple(sorted((*seen.nodes, *idle), key=lambda n: n.node_id))))
    assert brief(plan) == [("release", "node_c"), ("release", "node_b"), ("release", "node_d")]


@pytest.mark.parametrize(
    "kept",
    [
        node("node_x", gpu_count=2, free_gpus=(1,), idle_since_ms=0),
        node("node_x", idle_since_ms=None),
        node("node_x", Tier.SERVERLESS, idle_since_ms=0),
        *(node("node_x", state=state, idle_since_ms=0) for state in NodeState if state is not NodeState.READY),
    ],
)
def test_what_is_not_released(kept) -> None:
    """A node with a held GPU, one not idle, one not ready, and a serverless one (it dies with its run) are kept."""
    assert brief(decide(snapshot(nodes=[kept]))) == []


def test_a_node_with_a_run_is_never_released() -> None:
    """Even a node whose rows disagree (all GPUs free, idle, yet a live run) is not released."""
    seen = snapshot(
        runs=[run("run_a", "job_gone", "node_x", tier=Tier.MARKETPLACE)], nodes=[node("node_x", idle_since_ms=0)]
    )
    assert brief(decide(seen)) == []


# The frame


def test_order_of_actions_and_signals() -> None:
    """Starts, assigns, demotes, provisions, releases, in that order; the signals say what was seen."""
    held = job("job_r", JobState.RUNNING)
    live, place = on_serverless(held, F_MS)
    jobs = [job("job_q"), spent_job("job_w"), spent_job("job_x", resources=Resources(gpu_type="L4")), held]
    nodes = [place, node("node_a"), node("node_z", gpu_type="T4", gpu_memory_bytes=GIB, cpus=0, idle_since_ms=0)]
    l4 = offer("l4", Tier.MARKETPLACE, gpu_type="L4")
    plan = decide(snapshot(jobs=jobs, runs=[live], nodes=nodes, offers=[*OFFERS, l4]))
    assert [kind for kind, *_ in brief(plan)] == ["start", "assign", "demote", "provision", "release"]
    assert plan.policy == "fixed-threshold"
    assert dict(plan.signals) == {
        "F_s": 300.0,
        "jobs_waiting": 3.0,
        "nodes_serverless": 1.0,
        "nodes_own": 0.0,
        "nodes_marketplace": 2.0,
        "nodes_conventional": 0.0,
    }


def test_without_capabilities_nothing_is_asked_for() -> None:
    """In a world that can enact nothing the plan is empty, and each job is told what is switched off."""
    seen = running(F_MS)
    seen = replace(seen, jobs=(*seen.jobs, job("job_q")), nodes=(*seen.nodes, node("node_x", idle_since_ms=0)))
    plan = decide(seen, replace(CONFIG, capabilities=frozenset()))
    assert brief(plan) == []
    assert "switched off here: starting on serverless and renting serverful nodes" in why(plan, "job_q")


@pytest.mark.parametrize("missing", [ActionKind.ASSIGN, ActionKind.PROVISION])
def test_no_demotion_into_nowhere(missing: ActionKind) -> None:
    """Where nodes cannot be rented, or not be used, nobody is asked to leave serverless for one."""
    plan = decide(running(F_MS), replace(CONFIG, capabilities=CONFIG.capabilities - {missing}))
    assert brief(plan) == []
    assert "renting serverful nodes is switched off here" in why(plan)


def test_policies_by_name() -> None:
    """A policy is found by its name; an unknown name is refused with the known ones."""
    assert {"allpass", "allpass-paper", "allpass-drain", "fixed-threshold", "modal-only"} <= set(policy_names())
    assert policy_named("fixed-threshold").name == "fixed-threshold"
    with pytest.raises(InvalidInput, match=r"'fifo'.*fixed-threshold"):
        policy_named("fifo")


def test_release_action_type() -> None:
    """A release is told apart by its kind as well as by its class."""
    plan = decide(snapshot(nodes=[node("node_x", idle_since_ms=0)]))
    assert isinstance(plan.actions[0], Release)
    assert plan.actions[0].kind is ActionKind.RELEASE
