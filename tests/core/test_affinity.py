"""Beside whom jobs are placed, and which stay where they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.board import Board
from app.core.invariants import plan_breaches
from app.core.model.job import Affinity, JobState
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.plan import Assign
from app.core.model.snapshot import JobView, Snapshot
from app.core.policies import policy_named, policy_names
from app.core.policies.placement import Fleet
from app.core.policy import PolicyState
from tests.core.plans import F_MS, ask, brief, running
from tests.core.samples import ALL_ACTIONS, CONFIG, NOW_MS, OFFERS, affinities, job, node, run, snapshot

_WITHOUT_NODES = ("modal-only",)
X, Y = frozenset({"app=x"}), frozenset({"app=y"})


def on_node(view: JobView, name: str, node_name: str) -> tuple[JobView, object]:
    return replace(view, state=JobState.RUNNING), run(name, view.job_id, node_name, tier=Tier.MARKETPLACE)


def two_nodes(there: Affinity) -> Snapshot:
    """A cheap node that is free, and a dear one with room beside a job."""
    held, holds = on_node(job("job_h", affinity=there), "run_h", "node_b")
    cheap = node("node_a", price_per_hour=Money(5))
    dear = node("node_b", gpu_count=2, free_gpus=(1,), price_per_hour=Money(90))
    return snapshot(jobs=[held, job("job_a")], runs=[holds], nodes=[cheap, dear], offers=OFFERS)


def place_of(seen: Snapshot, asks: Affinity, *, name: str = "allpass") -> str | None:
    jobs = tuple(replace(one, affinity=asks) if one.job_id == "job_a" else one for one in seen.jobs)
    plan = policy_named(name).decide(Board.of(replace(seen, jobs=jobs)), PolicyState(), CONFIG)[0]
    return next((action.node_id for action in plan.actions if isinstance(action, Assign)), None)


def test_a_job_goes_where_the_labels_are() -> None:
    """Although another node costs less; without such a job anywhere it goes where it would go anyway."""
    assert place_of(two_nodes(Affinity(own=X)), Affinity()) == "node_a"
    assert place_of(two_nodes(Affinity(own=X)), Affinity(beside=X)) == "node_b"
    assert place_of(two_nodes(Affinity(own=Y)), Affinity(beside=X)) == "node_a"


@pytest.mark.parametrize("name", policy_names())
@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.WAITING])
def test_room_beside_the_other_is_taken_at_once(name: str, state: JobState) -> None:
    """Also by a job that would begin on serverless, of any policy that puts jobs on nodes."""
    seen = two_nodes(Affinity(own=X))
    seen = replace(seen, jobs=tuple(replace(one, state=state) if one.job_id == "job_a" else one for one in seen.jobs))
    assert place_of(seen, Affinity(beside=X), name=name) == ("node_b" if name not in _WITHOUT_NODES else None)


def test_a_job_waits_for_room_beside_the_other() -> None:
    """The other's node is full: no new machine is rented and none is started on serverless, and the user is told."""
    held, holds = on_node(job("job_h", affinity=Affinity(own=X)), "run_h", "node_b")
    full = node("node_b", free_gpus=())
    waits = job("job_a", affinity=Affinity(beside=X))
    seen = snapshot(jobs=[held, waits], runs=[holds], nodes=[full], offers=OFFERS)
    for name in policy_names():
        plan = policy_named(name).decide(Board.of(seen), PolicyState(), CONFIG)[0]
        assert [action for action in plan.actions if getattr(action, "job_id", "") == "job_a"] == []
        assert [action.kind for action in plan.actions if hasattr(action, "offer")] == []
        (waiting,) = (one.reason for one in plan.waiting if one.job_id == "job_a")
        assert "node_b" in waiting, name


@pytest.mark.parametrize(
    ("there", "asks"),
    [(Affinity(own=X), Affinity(apart=X)), (Affinity(apart=Y), Affinity(own=Y))],
    ids=["it keeps apart", "the other keeps apart"],
)
def test_two_jobs_that_are_to_be_apart_never_share_a_node(there: Affinity, asks: Affinity) -> None:
    """Whichever of the two asked for it, and in either order of arrival."""
    seen = two_nodes(there)
    only_dear = replace(seen, nodes=tuple(one for one in seen.nodes if one.node_id == "node_b"))
    assert place_of(only_dear, Affinity()) == "node_b"
    assert place_of(only_dear, asks) is None


def test_jobs_of_one_plan_keep_apart() -> None:
    """Two replicas that ask for different machines are not put onto the same one by the same decision."""
    spread = Affinity(own=X, apart=X)
    jobs = [job("job_a", affinity=spread), job("job_b", affinity=spread)]
    seen = snapshot(jobs=jobs, nodes=[node("node_a", gpu_count=2, free_gpus=(0, 1))], offers=OFFERS)
    done = [(kind, who) for kind, who, *_ in brief(ask("allpass", seen)[0])]
    assert ("assign", "job_a") in done
    assert ("assign", "job_b") not in done


@given(one=affinities, other=affinities)
def test_to_be_apart_is_mutual(one: Affinity, other: Affinity) -> None:
    """It does not matter who of the two is asked."""
    assert one.forbids(other) == other.forbids(one)


@given(asks=affinities, theirs=st.lists(affinities, max_size=3))
def test_the_hosts_of_a_job_hold_one_of_its_labels(asks: Affinity, theirs: list[Affinity]) -> None:
    """Each of them, and no other node of the project, nor one where only the job itself is."""
    held = [on_node(job(f"job_{at}", affinity=one), f"run_{at}", f"node_{at}") for at, one in enumerate(theirs)]
    nodes = [node(f"node_{at}", gpu_count=2, free_gpus=(1,)) for at in range(len(theirs))]
    seen = snapshot(jobs=[one for one, _ in held], runs=[there for _, there in held], nodes=nodes)
    expected = {f"node_{at}" for at, one in enumerate(theirs) if one.own & asks.beside}
    fleet = Fleet(Board.of(seen))
    assert fleet.hosts(job("job_new", affinity=asks)) == expected
    for at in range(len(theirs)):
        assert f"node_{at}" not in fleet.hosts(job(f"job_{at}", affinity=asks))


# Locked


@pytest.mark.parametrize("name", policy_names())
def test_a_locked_job_stays_where_it_is(name: str) -> None:
    """It has used up its time on serverless and a cheaper node stands ready: another job leaves for it, this one
    stays."""
    config = replace(CONFIG, capabilities=ALL_ACTIONS)
    cheap = node("node_c", price_per_hour=Money(5))

    def leaves(*, locked: bool) -> bool:
        there = running(2 * F_MS, locked=locked, total_run_ms=72_000_000, deadline_ms=NOW_MS + 360_000_000)
        seen = replace(there, nodes=tuple(sorted((cheap, *there.nodes), key=lambda one: one.node_id)))
        plan = policy_named(name).decide(Board.of(seen), PolicyState(), config)[0]
        assert plan_breaches(seen, plan, config) == []
        return any(action.kind in ("demote", "migrate", "preempt") for action in plan.actions)

    assert not leaves(locked=True)
    if name in ("allpass", "fixed-threshold"):
        assert leaves(locked=False)
