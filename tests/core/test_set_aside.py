"""What was freed for a job is kept for it, and it begins there as soon as it can."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.model.job import JobState, Resources
from app.core.model.node import NodeState, Tier
from app.core.model.offer import Offer
from app.core.model.plan import Assign, Provision, Release
from app.core.model.snapshot import JobView
from app.core.set_aside import HostNode, SetAside, keep
from tests.core.samples import NOW_MS, job, node, offer, run, snapshot

HOST = "host_a/A100"


def waits(name: str = "job_w", gpus: int = 2, **changes: Any) -> JobView:
    return job(name, resources=Resources(gpus, gpus), **changes)


def of_host(count: int, free: int, host: str = HOST, **changes: Any) -> Offer:
    share = {"cpus": 8 * count, "memory_bytes": 2**36 * count}
    made = offer(f"{host}-{count}", Tier.OWN, "0", gpu_count=count, host=host, shared_gpus=free, **(share | changes))
    return replace(made, provider="joined")


def test_the_lowest_free_gpus_of_a_node_are_the_jobs_and_the_rest_is_anybodys() -> None:
    machine = node("node_a", gpu_count=4, free_gpus=(1, 2, 3))
    kept = keep(snapshot(jobs=[waits(), waits("job_x")], nodes=[machine]), [SetAside("job_w", "node_a", 2)], [])
    (claim,) = kept.claims
    assert isinstance(claim, Assign)
    assert (claim.job_id, claim.node_id, claim.gpu_indices) == ("job_w", "node_a", (1, 2))
    assert claim.versions == (("job_w", 1), ("node_a", 1))
    (left,) = kept.snapshot.nodes
    assert (left.free_gpus, left.cpus, left.memory_bytes) == ((3,), 31, machine.memory_bytes)
    assert [one.job_id for one in kept.snapshot.jobs] == ["job_x"]
    assert kept.waiting == frozenset()


def test_before_enough_is_free_nobody_else_has_any_of_it() -> None:
    kept = keep(
        snapshot(jobs=[waits()], nodes=[node("node_a", gpu_count=4, free_gpus=(3,))]),
        [SetAside("job_w", "node_a", 2)],
        [],
    )
    assert (kept.claims, kept.snapshot.nodes[0].free_gpus, kept.waiting) == ((), (), frozenset({"job_w"}))


def test_two_that_share_a_node_have_each_their_own() -> None:
    machine = node("node_a", gpu_count=4)
    asides = [SetAside("job_w", "node_a", 2), SetAside("job_v", "node_a", 1)]
    kept = keep(snapshot(jobs=[waits(), waits("job_v", 1)], nodes=[machine]), asides, [])
    taken = [(one.job_id, one.gpu_indices) for one in kept.claims if isinstance(one, Assign)]
    assert taken == [("job_v", (0,)), ("job_w", (1, 2))]
    assert kept.snapshot.nodes[0].free_gpus == (3,)


@pytest.mark.parametrize(
    "changes",
    [{"state": JobState.RUNNING}, {"state": JobState.PAUSED}, {"state": JobState.STARTING}, {"leaving": True}],
    ids=str,
)
def test_nothing_is_kept_for_a_job_that_wants_no_place(changes: dict[str, Any]) -> None:
    seen = snapshot(jobs=[waits(**changes)], nodes=[node("node_a", gpu_count=4)])
    kept = keep(seen, [SetAside("job_w", "node_a", 2)], [])
    assert (kept.snapshot, kept.claims) == (seen, ())


def test_nothing_is_kept_for_a_job_that_has_a_run_or_is_unknown_or_where_nothing_is() -> None:
    held = run("run_w", "job_w", "node_b", tier=Tier.MARKETPLACE)
    seen = snapshot(jobs=[waits(), waits("job_y")], runs=[held], nodes=[node("node_a", gpu_count=4), node("node_b")])
    asides = [SetAside("job_w", "node_a", 2), SetAside("job_x", "node_a", 2), SetAside("job_y", "node_c", 1)]
    kept = keep(seen, asides, [])
    assert (kept.snapshot, kept.claims) == (seen, ())


def test_one_that_is_not_to_be_tried_yet_keeps_its_place_and_does_not_begin() -> None:
    later = waits(not_before_ms=NOW_MS + 1)
    kept = keep(snapshot(jobs=[later], nodes=[node("node_a", gpu_count=2)]), [SetAside("job_w", "node_a", 2)], [])
    assert (kept.claims, kept.snapshot.nodes[0].free_gpus) == ((), ())


@pytest.mark.parametrize("state", [NodeState.UNREACHABLE, NodeState.DRAINING, NodeState.BOOTING])
def test_it_does_not_begin_on_a_node_that_is_not_there(state: NodeState) -> None:
    machine = node("node_a", gpu_count=2, state=state)
    assert keep(snapshot(jobs=[waits()], nodes=[machine]), [SetAside("job_w", "node_a", 2)], []).claims == ()


# Hosts of pools


def test_a_node_is_cut_for_it_once_its_host_has_enough_and_others_are_offered_the_rest() -> None:
    offers = [of_host(1, 3), of_host(2, 3), of_host(3, 3), of_host(1, 4, "host_b/A100")]
    kept = keep(snapshot(jobs=[waits()], offers=offers), [SetAside("job_w", HOST, 2)], [])
    (claim,) = kept.claims
    assert isinstance(claim, Provision)
    assert (claim.for_job_id, claim.offer.gpu_count) == ("job_w", 2)
    assert [(one.host, one.gpu_count, one.shared_gpus) for one in kept.snapshot.offers] == [
        (HOST, 1, 1), ("host_b/A100", 1, 4),
    ]  # fmt: skip


def test_until_then_nobody_is_offered_any_of_it() -> None:
    kept = keep(snapshot(jobs=[waits()], offers=[of_host(1, 1)]), [SetAside("job_w", HOST, 2)], [])
    assert (kept.claims, kept.snapshot.offers, kept.waiting) == ((), (), frozenset({"job_w"}))


def test_nodes_there_that_nobody_is_on_end_until_there_is_enough() -> None:
    """A node of the pool is of one project, and is not larger than it was: what is freed is its host's."""
    idle = [node(name, Tier.OWN, project_id="proj_b") for name in ("node_a", "node_b", "node_c")]
    busy = node("node_d", Tier.OWN, free_gpus=())
    seen = snapshot(jobs=[waits()], nodes=[*idle, busy], offers=[])
    on_hosts = [HostNode(one.node_id, HOST) for one in (*idle, busy)]
    kept = keep(seen, [SetAside("job_w", HOST, 2)], on_hosts)
    assert [(type(one), one.node_id) for one in kept.claims if isinstance(one, Release)] == [
        (Release, "node_a"), (Release, "node_b"),
    ]  # fmt: skip


def test_the_node_that_was_cut_for_it_is_its_own_while_it_comes_and_when_it_is_there() -> None:
    comes = node("node_a", Tier.OWN, NodeState.BOOTING, gpu_count=2)
    others = waits("job_x", 1)
    on_hosts = [HostNode("node_a", HOST, "job_w")]
    seen = snapshot(jobs=[waits(), others], nodes=[comes], offers=[of_host(1, 2), of_host(2, 2)])
    kept = keep(seen, [SetAside("job_w", HOST, 2)], on_hosts)
    assert (kept.claims, kept.snapshot.nodes, kept.snapshot.offers) == ((), (), seen.offers)
    there = replace(seen, nodes=(replace(comes, state=NodeState.READY),))
    (claim,) = keep(there, [SetAside("job_w", HOST, 2)], on_hosts).claims
    assert isinstance(claim, Assign) and claim.node_id == "node_a"


def test_a_node_that_was_cut_for_it_and_is_anothers_now_is_none() -> None:
    """The job has been there before, or somebody else was quicker."""
    taken = node("node_a", Tier.OWN, gpu_count=2, free_gpus=())
    kept = keep(
        snapshot(jobs=[waits()], nodes=[taken], offers=[of_host(2, 2)]),
        [SetAside("job_w", HOST, 2)],
        [HostNode("node_a", HOST, "job_w")],
    )
    assert [type(one) for one in kept.claims] == [Provision]


def test_an_idle_node_that_is_kept_for_another_is_left_to_it() -> None:
    idle = node("node_a", Tier.OWN, gpu_count=2)
    asides = [SetAside("job_v", HOST, 2), SetAside("job_w", "node_a", 2)]
    kept = keep(
        snapshot(jobs=[waits(), waits("job_v")], nodes=[idle], offers=[of_host(2, 2)]),
        asides,
        [HostNode("node_a", HOST)],
    )
    taken = {
        one.job_id if isinstance(one, Assign) else one.for_job_id: type(one)
        for one in kept.claims
        if not isinstance(one, Release)
    }
    assert taken == {"job_v": Provision, "job_w": Assign}


def test_what_is_free_on_a_node_that_is_being_left_is_nobodys() -> None:
    """Else somebody comes there, and the node is never given back."""
    left = node("node_a", Tier.OWN, gpu_count=2, free_gpus=(1,), project_id="proj_b")
    held = run("run_v", "job_v", "node_a", tier=Tier.OWN)
    seen = snapshot(jobs=[waits()], nodes=[left], runs=[held])
    for evicted_for, free in (("job_w", ()), ("job_x", (1,)), (None, (1,))):
        kept = keep(seen, [SetAside("job_w", HOST, 2)], [HostNode("node_a", HOST, None, evicted_for)])
        assert kept.snapshot.nodes[0].free_gpus == free


def test_an_idle_node_of_its_project_that_is_large_enough_is_taken_as_it_is() -> None:
    idle = node("node_a", Tier.OWN, gpu_count=2)
    kept = keep(
        snapshot(jobs=[waits()], nodes=[idle]), [SetAside("job_w", HOST, 2)], [HostNode("node_a", HOST, "job_v")]
    )
    assert [type(one) for one in kept.claims] == [Assign]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6)), max_size=4),
    st.lists(st.integers(1, 3), max_size=3),
    st.integers(0, 3),
)
def test_nothing_is_ever_anothers_as_well(asked: list[tuple[int, int]], nodes: list[int], free: int) -> None:
    """What jobs claim, and what is left for others, are different GPUs, and no more than there are."""
    machines = [node(f"node_{n}", Tier.OWN, gpu_count=gpus) for n, gpus in enumerate(nodes)]
    offers = [of_host(count, free) for count in range(1, free + 1)]
    jobs = [waits(f"job_{n}", gpus) for n, (gpus, _) in enumerate(asked)]
    places = [*(one.node_id for one in machines), HOST, "node_gone", "host_gone/A100"]
    asides = [SetAside(f"job_{n}", places[at % len(places)], gpus) for n, (gpus, at) in enumerate(asked)]
    seen = snapshot(jobs=jobs, nodes=machines, offers=offers)
    kept = keep(seen, asides, [HostNode(one.node_id, HOST) for one in machines])
    left = {one.node_id: set(one.free_gpus) for one in kept.snapshot.nodes}
    for claim in kept.claims:
        if isinstance(claim, Assign):
            assert left[claim.node_id].isdisjoint(claim.gpu_indices)
            left[claim.node_id] |= set(claim.gpu_indices)
    assert all(left[one.node_id] <= set(one.free_gpus) for one in machines)
    cut = sum(one.offer.gpu_count for one in kept.claims if isinstance(one, Provision))
    assert cut + max((one.shared_gpus for one in kept.snapshot.offers), default=0) <= free
    begun = [
        one.job_id if isinstance(one, Assign) else one.for_job_id for one in kept.claims if not isinstance(one, Release)
    ]
    assert len(begun) == len(set(begun))
    assert not kept.waiting & set(begun)
    assert {one.job_id for one in kept.snapshot.jobs}.isdisjoint(kept.waiting | set(begun))


def test_a_node_that_comes_for_a_job_is_hidden_until_it_is_there() -> None:
    """A policy that sees it, and not the job, would end it, and the next decision would have another one cut."""
    place = "host_a/A100"
    comes = node("node_c", Tier.OWN, NodeState.BOOTING, gpu_count=2)
    waits = job("job_w", resources=Resources(1, 1))
    seen = snapshot(jobs=[waits], nodes=[comes])
    found = keep(seen, [SetAside("job_w", place, 1)], [HostNode("node_c", place, "job_w")])
    assert (found.snapshot.nodes, found.waiting) == ((), {"job_w"})
    there = snapshot(jobs=[waits], nodes=[replace(comes, state=NodeState.READY)])
    found = keep(there, [SetAside("job_w", place, 1)], [HostNode("node_c", place, "job_w")])
    assert [one.free_gpus for one in found.snapshot.nodes] == [(1,)]
    assert [type(one).__name__ for one in found.claims] == ["Assign"]
