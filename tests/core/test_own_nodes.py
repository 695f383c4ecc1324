"""Machines of the team's own: filled first, shared by GPU, never rented, and given back at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.invariants import plan_breaches
from app.core.model.job import JobKind, JobState, Resources, StartRule
from app.core.model.money import ZERO, Money
from app.core.model.node import NodeState, Tier
from app.core.model.offer import Offer
from app.core.model.plan import Start
from app.core.model.snapshot import JobView, NodeView
from app.core.policies import policy_names
from tests.core.plans import ask, brief
from tests.core.samples import OFFERS, job, node, offer, run
from tests.core.test_allpass import ALL, CALM, HOUR_MS, NOW_MS, at_now, batch, decide, training

GIB = 2**30


def own(count: int = 1, free: int = 8, host: str = "a", **changes: Any) -> Offer:
    """So many GPUs of a host of ours that has `free` left."""
    values: dict[str, Any] = {"startup_ms": 800, "host": host, "shared_gpus": free}
    return offer(f"{host}-{count}", Tier.OWN, "0", gpu_count=count, **(values | changes))


def host(free: int, name: str = "a", **changes: Any) -> list[Offer]:
    return [own(count, free, name, **changes) for count in (1, 2, 4, 8) if count <= free]


def own_node(name: str = "node_own", **changes: Any) -> NodeView:
    return node(name, tier=Tier.OWN, price_per_hour=ZERO, **changes)


@pytest.mark.parametrize(
    "changes", [{}, {"start": StartRule.NOW}, {"kind": JobKind.INTERACTIVE}, {"total_run_ms": None}]
)
def test_whoever_comes_starts_on_a_machine_of_our_own(changes: dict[str, Any]) -> None:
    """It is there as soon as serverless and costs nothing: nobody waits, and nobody pays."""
    plan = decide(at_now(jobs=[batch(**changes)], offers=[*OFFERS, own()]))
    assert brief(plan) == [("start", "job_a", "a-1")]
    assert "own offers that fit" in plan.actions[0].reason


def test_what_is_full_overflows() -> None:
    """Three GPUs are free, five jobs come: the other two start on serverless, and no GPU is given out twice."""
    jobs = [job(f"job_{name}", start=StartRule.NOW, submitted_ms=NOW_MS) for name in "abcde"]
    plan = decide(at_now(jobs=jobs, offers=[*OFFERS, *host(3)]))
    tiers = [action.offer.tier for action in plan.actions if isinstance(action, Start)]
    assert sorted(tiers) == [Tier.OWN] * 3 + [Tier.SERVERLESS] * 2


def test_a_job_that_needs_more_than_is_left_does_not_hinder_a_small_one() -> None:
    jobs = [
        job("job_a", start=StartRule.NOW, submitted_ms=NOW_MS - 1, resources=Resources(gpus_min=2)),
        job("job_b", start=StartRule.NOW, submitted_ms=NOW_MS, resources=Resources(gpus_min=2)),
        job("job_c", start=StartRule.NOW, submitted_ms=NOW_MS),
    ]
    plan = decide(at_now(jobs=jobs, offers=[*OFFERS, *host(3)]))
    assert ("start", "job_a", "a-2") in brief(plan) and ("start", "job_c", "a-1") in brief(plan)


@pytest.mark.parametrize("names", ["abc", "bca", "cab"])
def test_small_jobs_fill_the_fullest_host_first(names: str) -> None:
    """However hosts are called: the empty one is left for who needs all of it, in this decision and in the next."""
    full, half, empty = names
    offers = [*OFFERS, *host(1, full), *host(3, half), *host(8, empty)]
    small = [job(f"job_{number}", start=StartRule.NOW, submitted_ms=NOW_MS) for number in range(4)]
    large = job("job_z", start=StartRule.NOW, submitted_ms=NOW_MS, resources=Resources(gpus_min=8))
    taken = [action.offer.offer_id for action in decide(at_now(jobs=[*small, large], offers=offers)).actions
             if isinstance(action, Start)]  # fmt: skip
    assert taken == [f"{full}-1", f"{half}-1", f"{half}-1", f"{half}-1", f"{empty}-8"]


def test_neither_limit_of_nodes_counts_machines_of_our_own() -> None:
    """No serverless place and no node may be had, and ours are there all the same."""
    none_left = replace(ALL, serverless_limit=0, serverful_limit=1)
    seen = at_now(jobs=[batch("job_a"), batch("job_b")], offers=[own(free=2), own(2, 2)], nodes=[own_node()])
    seen = replace(seen, nodes=(*seen.nodes, replace(own_node("node_z"), state=NodeState.UNREACHABLE)))
    kinds = [kind for kind, *_ in brief(decide(seen, none_left))]
    assert kinds.count("start") + kinds.count("assign") == 2


def test_what_starts_slowly_is_moved_to_while_the_job_trains() -> None:
    """A place in a cluster's queue takes minutes: the job starts on serverless, and goes there when it is ready."""
    slow = own(startup_ms=180_000)
    plan = decide(at_now(jobs=[batch(start=StartRule.NOW)], offers=[*OFFERS, slow]))
    assert brief(plan) == [("start", "job_a", "fn")]
    later = replace(training(600_000), offers=(*OFFERS, slow))
    assert brief(decide(later)) == [("provision", "job_a", "a-1")]


def test_a_job_on_serverless_comes_home_when_a_gpu_is_free() -> None:
    assert brief(decide(replace(training(600_000), offers=(*OFFERS, own())))) == [("provision", "job_a", "a-1")]


def test_a_job_on_a_rented_node_comes_home_and_none_of_ours_leaves() -> None:
    """What costs rent is left for what does not; and not the other way, whatever price its owner states."""
    held = batch(state=JobState.RUNNING, total_run_ms=20 * HOUR_MS, deadline_ms=NOW_MS + 40 * HOUR_MS)
    live = run("run_a", "job_a", "node_r", tier=Tier.MARKETPLACE, running_since_ms=NOW_MS - 6 * HOUR_MS)
    rented = node("node_r", free_gpus=(), price_per_hour=Money.usd("0.74"))
    away = at_now(jobs=[held], runs=[live], nodes=[rented], offers=[*OFFERS, own()])
    assert brief(decide(away)) == [("provision", "job_a", "a-1")]
    home = replace(rented, tier=Tier.OWN, price_per_hour=Money.usd("9"))
    settled = replace(away, nodes=(home,), runs=(replace(live, tier=Tier.OWN),), offers=OFFERS)
    assert brief(decide(settled)) == []


def test_a_free_machine_of_our_own_is_given_back_at_once() -> None:
    """It is there again within a second, and another project's job may want it: however often jobs come."""
    busy = CALM.having(**{"reuse/proj_a": 1e12})
    plan = decide(at_now(nodes=[own_node(idle_since_ms=NOW_MS)]), state=busy)
    assert brief(plan) == [("release", "node_own")]


@pytest.mark.parametrize("policy", [name for name in policy_names() if name not in ("modal-only", "hpa-conventional")])
def test_whoever_decides_gives_it_back_at_once(policy: str) -> None:
    """Also a policy that keeps idle nodes by their number, or until its next tick."""
    waits = batch("job_b", project_id="proj_b")
    seen = at_now(jobs=[waits], nodes=[own_node(idle_since_ms=NOW_MS)], offers=OFFERS)
    plan, _ = ask(policy, seen, replace(ALL, idle_release_ms=600_000), CALM)
    assert ("release", "node_own") in brief(plan)


def test_an_idle_machine_of_our_own_counts_for_no_autoscaler() -> None:
    """It is another project's: the job that waits has a node rented as if there were none."""
    waits = batch("job_b", project_id="proj_b")
    nodes = [own_node(name, idle_since_ms=NOW_MS) for name in ("node_a", "node_b")]
    plan, _ = ask("hpa", at_now(jobs=[waits], nodes=nodes, offers=OFFERS), ALL, CALM)
    assert ("provision", "job_b", "ask") in brief(plan)


def test_a_pool_is_for_its_projects() -> None:
    mine, other = own(projects=("proj_a",)), own(projects=("proj_b",))
    assert brief(decide(at_now(jobs=[batch(start=StartRule.NOW)], offers=[*OFFERS, mine])))[0][2] == "a-1"
    assert brief(decide(at_now(jobs=[batch(start=StartRule.NOW)], offers=[*OFFERS, other])))[0][2] == "fn"
    stolen = Start("job_a", other, "takes it", (("job_a", 1),))
    seen = at_now(jobs=[batch(start=StartRule.NOW)], offers=[other])
    plan = replace(decide(seen), actions=(stolen,), waiting=())
    assert any("for other projects" in breach for breach in plan_breaches(seen, plan, ALL))


@given(
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=12),
    free=st.lists(st.integers(1, 8), max_size=3),
    policy=st.sampled_from(policy_names()),
)
def test_no_gpu_of_a_host_is_given_out_twice(sizes: list[int], free: list[int], policy: str) -> None:
    """Whatever comes and whoever decides."""
    jobs = [
        job(f"job_{number:02}", start=StartRule.AUTO, submitted_ms=NOW_MS, resources=Resources(gpus_min=size))
        for number, size in enumerate(sizes)
    ]
    offers = [*OFFERS, *(one for number, left in enumerate(free) for one in host(left, f"h{number}"))]
    seen = at_now(jobs=jobs, offers=sorted(offers, key=lambda one: one.key))
    plan, _ = ask(policy, seen, ALL, CALM)
    assert plan_breaches(seen, plan, ALL) == []


def test_the_law_itself_sees_what_is_given_twice() -> None:
    one = own(free=1)
    jobs: list[JobView] = [batch("job_a"), batch("job_b")]
    seen = at_now(jobs=jobs, offers=[one])
    starts = tuple(Start(each.job_id, one, "takes it", ((each.job_id, each.row_version),)) for each in jobs)
    plan = replace(decide(seen), actions=starts, waiting=())
    assert any("GPUs of a are given out" in breach for breach in plan_breaches(seen, plan, ALL))
