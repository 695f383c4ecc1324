"""Jobs on several machines get all of them at once, or none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.gang_offers import EmptyPool, GangNode
from app.core.gang_sites import site_of
from app.core.gangs import MOST_PLACED, RESERVE_AFTER_MS, GatheredGangs, gather, without_gangs
from app.core.model.job import Caps, JobState, Resources
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, NodeState, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.core.model.plan import AssignGang, ProvisionGang, Release
from app.core.model.snapshot import JobView, NodeView, Snapshot
from app.core.set_aside import SetAside, keep
from tests.core.samples import NOW_MS, job, node, offer, run, snapshot

_RULE = BillingRule(1_000, BillingStart.READY)
TRAITS = (
    ProviderTraits("joined", Tier.OWN, _RULE, 1, 60_000, 1, False, True, is_networked=True),
    ProviderTraits("cloud", Tier.CONVENTIONAL, _RULE, 1, 60_000, 1, False, False, is_networked=True),
    ProviderTraits("market", Tier.MARKETPLACE, _RULE, 1, 60_000, 1, False, True),
)


def gang(name: str = "job_g", nodes: int = 2, gpus: int = 1, **changes: Any) -> JobView:
    return job(name, **({"resources": Resources(gpus, gpus, nodes=nodes), "submitted_ms": NOW_MS} | changes))


def of_host(host: str, gpus: int = 1, **changes: Any) -> Offer:
    made = offer(f"{host}-{gpus}", Tier.OWN, "0", gpu_count=gpus, host=f"{host}/A100", shared_gpus=gpus, region="lab")
    return replace(made, provider="joined", **changes)


def in_cloud(region: str = "east", price: str = "2", **changes: Any) -> Offer:
    made = offer(f"vm-{region}", Tier.CONVENTIONAL, price, region=region)
    return replace(made, provider="cloud", **changes)


def machine(name: str, host: str = "", state: NodeState = NodeState.READY, **changes: Any) -> NodeView:
    made = node(name, Tier.OWN, state, region="lab", gpu_count=1, free_gpus=(0,))
    return replace(made, provider="joined", **changes)


def seen(**parts: Any) -> Snapshot:
    return replace(snapshot(**parts), traits=TRAITS)


def rented(gathered: GatheredGangs) -> list[str]:
    """What is rented, by offer."""
    return [one.offer_id for claim in gathered.claims if isinstance(claim, ProvisionGang) for one in claim.offers]


def test_two_hosts_are_taken_at_once_each_once() -> None:
    offers = (of_host("a"), of_host("a", 2), of_host("b"))
    gathered = gather(seen(jobs=[gang()], offers=offers), ())
    assert rented(gathered) == ["a-1", "b-1"]
    assert gathered.snapshot.jobs == ()
    assert gathered.snapshot.offers == (), "nobody else gets what is left of these hosts in the same decision"


def test_one_host_is_not_enough_and_is_left_to_others() -> None:
    gathered = gather(seen(jobs=[gang()], offers=(of_host("a"), of_host("a", 2))), ())
    assert gathered.claims == () and len(gathered.snapshot.offers) == 2
    assert gathered.waiting["job_g"].startswith("waits for 2 machines with 1 x GPU each, on one private network")


def test_one_that_failed_it_lately_is_passed_over_as_long_as_there_are_others() -> None:
    """A pool of two hosts of which one was slow to come is no reason to wait: it is tried again."""
    hosts = of_host("a"), of_host("b"), of_host("c")
    failed = gang(avoided_offers=frozenset({hosts[0].key}))
    assert rented(gather(seen(jobs=[failed], offers=hosts), ())) == ["b-1", "c-1"]
    again = gather(seen(jobs=[failed], offers=hosts[:2]), ())
    assert rented(again) == ["b-1", "a-1"]
    (claim,) = again.claims
    assert claim.reason == "rents 2 machines at once, though it failed to come before: there are no others"
    dearer = gather(seen(jobs=[failed], offers=(*hosts[:2], in_cloud())), ())
    assert rented(dearer) == ["vm-east", "vm-east"], (
        "as a job on one machine takes what is dearer and has not failed it"
    )


def test_one_whose_provider_failed_in_passing_is_left_for_a_while() -> None:
    hosts = of_host("a"), of_host("b")
    failed = gang(avoided_offers=frozenset({hosts[1].key}), unreached_offers=frozenset({hosts[0].key}))
    gathered = gather(seen(jobs=[failed], offers=hosts), ())
    assert gathered.claims == () and "waits for 2 machines" in gathered.waiting["job_g"]


def test_machines_of_a_marketplace_do_not_reach_each_other_and_that_is_said() -> None:
    ask = replace(offer("ask", Tier.MARKETPLACE, "0.5"), provider="market")
    gathered = gather(seen(jobs=[gang()], offers=(ask,)), ())
    assert gathered.claims == ()
    assert gathered.waiting["job_g"].endswith("those of market marketplace do not reach each other")


def test_how_many_machines_each_place_has_is_said_and_what_limits_forbid() -> None:
    """As a plan says it; of pools of other projects nothing."""
    few = (of_host("a"), of_host("b"), replace(of_host("c"), region="annex"))
    theirs = tuple(replace(of_host(name), region="secretive", projects=("proj_b",)) for name in "xyz")
    gathered = gather(seen(jobs=[gang(nodes=3)], offers=(*few, *theirs)), ())
    assert gathered.waiting["job_g"] == (
        "waits for 3 machines with 1 x GPU each, on one private network: pool lab has 2 of them free now (A100), pool "
        "annex has 1 of them free now (A100)"
    )
    many = tuple(replace(of_host(f"h{number}"), region=f"p{number}") for number in range(9))
    assert gather(seen(jobs=[gang()], offers=many), ()).waiting["job_g"].endswith("5 other places have no more")
    dear = gather(seen(jobs=[gang(caps=Caps(max_hourly=Money.usd("1")))], offers=(in_cloud(),)), ())
    assert dear.waiting["job_g"].endswith(
        "enough are there, and it may not have them now: its limits, its image, or what failed it before"
    )


def test_own_machines_come_before_a_cloud_and_the_cheaper_region_before_the_dearer() -> None:
    cloud = (in_cloud("east", "3"), in_cloud("west", "2"))
    assert rented(gather(seen(jobs=[gang()], offers=(*cloud, of_host("a"))), ())) == ["vm-west", "vm-west"]
    assert rented(gather(seen(jobs=[gang()], offers=(*cloud, of_host("a"), of_host("b"))), ())) == ["a-1", "b-1"]


def test_it_begins_when_all_are_ready_and_the_first_leads() -> None:
    nodes = [machine("node_a"), machine("node_b", free_gpus=(0,))]
    gathered = gather(seen(jobs=[gang()], nodes=nodes), [GangNode("node_a", "job_g"), GangNode("node_b", "job_g")])
    (claim,) = gathered.claims
    assert isinstance(claim, AssignGang)
    assert [(one.node_id, one.gpu_indices) for one in claim.places] == [("node_a", (0,)), ("node_b", (0,))]
    assert claim.versions == (("job_g", 1), ("node_a", 1), ("node_b", 1))
    assert gathered.snapshot.nodes == ()


def test_machines_that_come_are_waited_for_and_nobody_else_sees_them() -> None:
    nodes = [machine("node_a"), machine("node_b", state=NodeState.BOOTING)]
    its = [GangNode("node_a", "job_g"), GangNode("node_b", "job_g")]
    gathered = gather(seen(jobs=[gang()], nodes=nodes, offers=(of_host("c"),)), its)
    assert gathered.claims == () and gathered.snapshot.nodes == ()
    assert gathered.waiting["job_g"] == "2 machines for it are there or coming, of 2"


def test_one_that_is_lost_is_replaced_on_a_host_that_it_does_not_have() -> None:
    its = [GangNode("node_a", "job_g", "a/A100")]
    world = seen(jobs=[gang()], nodes=[machine("node_a")], offers=(of_host("a"), of_host("b")))
    assert rented(gather(world, its)) == ["b-1"]


def test_what_cannot_be_completed_is_let_go_and_it_rests() -> None:
    its = [GangNode("node_a", "job_g", "a/A100")]
    gathered = gather(seen(jobs=[gang()], nodes=[machine("node_a")], offers=(of_host("a"),)), its)
    (claim,) = gathered.claims
    assert isinstance(claim, Release) and claim.node_id == "node_a"
    assert gathered.given_up == {"job_g"}
    world = seen(jobs=[gang()], offers=(of_host("a"), of_host("b")))
    resting = gather(world, (), resting={"job_g": NOW_MS + 60_000})
    assert resting.claims == () and resting.wake_at_ms == NOW_MS + 60_000
    assert rented(gather(world, (), resting={"job_g": NOW_MS})) == ["a-1", "b-1"]


def test_a_job_that_is_begun_again_soon_keeps_its_machines() -> None:
    """As after a lost machine: the others are ready, and it may not be placed for a few seconds."""
    its = [GangNode("node_a", "job_g")]
    waits = gang(state=JobState.WAITING, not_before_ms=NOW_MS + 5_000)
    gathered = gather(seen(jobs=[waits], nodes=[machine("node_a")], offers=(of_host("b"),)), its)
    assert gathered.claims == () and gathered.snapshot.nodes == () and gathered.wake_at_ms == NOW_MS + 5_000


@pytest.mark.parametrize(
    "changes",
    [{"joins": False}, {"project_id": "proj_z"}, {"free_gpus": ()}, {"cpus": 0}, {"image": "other"}],
    ids=["an old agent", "another project's", "no room", "no processors", "another image"],
)
def test_a_machine_that_cannot_take_part_is_replaced(changes: dict[str, Any]) -> None:
    joins = changes.pop("joins", True)
    node_a = machine("node_a", **changes)
    world = seen(jobs=[gang()], nodes=[node_a, machine("node_b")], offers=(of_host("c"),))
    gathered = gather(world, [GangNode("node_a", "job_g", joins=joins), GangNode("node_b", "job_g")])
    assert rented(gathered) == ["c-1"]
    assert [one.node_id for one in gathered.claims if isinstance(one, Release)] == ["node_a"]


def test_limits_count_for_all_machines_together() -> None:
    """Each of them alone would be within them."""
    two = (in_cloud("east", "2"),)
    hourly = gang(caps=Caps(max_hourly=Money.usd("3")))
    assert rented(gather(seen(jobs=[hourly], offers=two), ())) == []
    assert rented(gather(seen(jobs=[gang(caps=Caps(max_hourly=Money.usd("4")))], offers=two), ())) == ["vm-east"] * 2
    second = Money.usd("2").micros // 3600
    poor = gang(caps=Caps(max_cost=Money(second + second // 2)))
    assert rented(gather(seen(jobs=[poor], offers=two), ())) == []


def test_of_two_that_want_the_same_machines_the_first_due_gets_all() -> None:
    first, later = gang("job_f", deadline_ms=5), gang("job_a", deadline_ms=9)
    gathered = gather(seen(jobs=[later, first], offers=(of_host("a"), of_host("b"), of_host("c"))), ())
    assert [claim.job_id for claim in gathered.claims if isinstance(claim, ProvisionGang)] == ["job_f"]
    assert "job_a" in gathered.waiting


def pool_of(*hosts: str, gpus: int = 1, most_gpus: int | None = None, **changes: Any) -> EmptyPool:
    """What it would offer if nothing ran there."""
    return EmptyPool("lab", tuple(of_host(host, gpus, **changes) for host in hosts), most_gpus)


def kept_for(job_g: JobView, pool: EmptyPool, *offers: Offer, others: tuple[JobView, ...] = ()) -> set[str]:
    gathered = gather(seen(jobs=[job_g, *others], offers=offers), (), pools=[pool])
    assert gathered.claims == ()
    assert not {one.host for one in gathered.snapshot.offers} & set(gathered.kept_hosts)
    return {host.partition("/")[0] for host in gathered.kept_hosts}


LONG_AGO = NOW_MS - RESERVE_AFTER_MS


def test_as_many_hosts_as_it_needs_are_kept_for_one_that_has_waited_long() -> None:
    """Those with the most free GPUs, and no more of them: the rest of the pool is anybody's."""
    pool = pool_of("a", "b", "c", "d", gpus=2)
    job_g = gang(nodes=2, gpus=2, submitted_ms=LONG_AGO)
    assert kept_for(job_g, pool, of_host("c", 1)) == {"c", "a"}
    assert kept_for(job_g, pool, of_host("b", 2), of_host("d", 1)) == {"b", "d"}
    soon = gather(seen(jobs=[replace(job_g, submitted_ms=LONG_AGO + 1)], offers=(of_host("b"),)), (), pools=[pool])
    assert soon.kept_hosts == {} and soon.wake_at_ms == NOW_MS + 1


@pytest.mark.parametrize(
    ("pool", "changes"),
    [
        (pool_of("a"), {}),
        (pool_of("a", "b"), {"resources": Resources(1, 1, gpu_type="H100", nodes=2)}),
        (pool_of("a", "b"), {"resources": Resources(2, 2, nodes=2)}),
        (pool_of("a", "b", projects=("proj_z",)), {}),
        (pool_of("a", "b", most_gpus=1), {}),
        (pool_of("a", "b", price_per_hour=Money.usd("2")), {"caps": Caps(max_hourly=Money.usd("3"))}),
        (pool_of("a", "b"), {"resources": Resources(1, 1, nodes=10**9)}),
    ],
    ids=["too few hosts", "another kind", "too small", "another project's", "a limit", "too dear", "absurdly many"],
)
def test_no_host_is_kept_where_it_could_never_have_all(pool: EmptyPool, changes: dict[str, Any]) -> None:
    """Else others would miss them for ever, for nothing."""
    assert kept_for(gang(submitted_ms=LONG_AGO, **changes), pool, of_host("a")) == set()


def test_hosts_of_a_pool_are_kept_for_the_first_in_line_alone() -> None:
    """The second one may not take what is kept for the first, nor have more of the pool kept."""
    pool = pool_of("a", "b", "c")
    first = gang("job_a", 3, submitted_ms=LONG_AGO, deadline_ms=1)
    second = gang("job_b", 2, submitted_ms=LONG_AGO, deadline_ms=2)
    assert kept_for(first, pool, of_host("a"), of_host("b"), others=(second,)) == {"a", "b", "c"}


def test_what_was_freed_for_another_job_is_out_of_its_sight() -> None:
    """As the loop asks: first what is kept for jobs is taken out, then those on several machines are placed."""
    other = job("job_w", submitted_ms=NOW_MS)
    world = seen(jobs=[gang(), other], offers=(of_host("a"), of_host("b")))
    left = keep(world, [SetAside("job_w", "a/A100", 1)], []).snapshot
    assert rented(gather(world, ())) == ["a-1", "b-1"] and rented(gather(left, ())) == []


def test_a_cloud_is_not_kept_for_anybody() -> None:
    world = seen(jobs=[gang(nodes=2, gpus=8, submitted_ms=0)], offers=(in_cloud(),))
    assert gather(world, ()).snapshot.offers == world.offers


def test_others_see_neither_its_runs_nor_its_machines() -> None:
    nodes = [machine("node_a", free_gpus=()), machine("node_b", free_gpus=()), machine("node_c")]
    runs = [run("run_a", "job_g", "node_a"), run("run_b", "job_g", "node_b")]
    world = seen(jobs=[gang(state=JobState.RUNNING), job("job_s")], nodes=nodes, runs=runs)
    for hidden in (gather(world, ()).snapshot, without_gangs(world)):
        assert [one.job_id for one in hidden.jobs] == ["job_s"]
        assert hidden.runs == ()
        assert [one.node_id for one in hidden.nodes] == ["node_c"]


@pytest.mark.parametrize("changes", [{"state": JobState.PAUSED}, {"leaving": True}])
def test_one_that_wants_no_place_gets_none(changes: dict[str, Any]) -> None:
    gathered = gather(seen(jobs=[gang(**changes)], offers=(of_host("a"), of_host("b"))), ())
    assert gathered.claims == () and gathered.waiting == {}


def test_without_such_jobs_nothing_is_changed() -> None:
    world = seen(jobs=[job()], offers=(of_host("a"),))
    assert gather(world, ()).snapshot is world


def test_where_one_has_just_failed_to_come_the_others_are_kept_until_it_is_listed_again() -> None:
    """Fifteen machines are not given back, and booted anew, for one that is on no list for a minute."""
    its = [GangNode("node_a", "job_g", "a/A100")]
    failed = gang(avoided_offers=frozenset({of_host("b").key}), not_before_ms=NOW_MS - 30_000)
    world = seen(jobs=[failed], nodes=[machine("node_a")], offers=())
    gathered = gather(world, its)
    assert (gathered.claims, gathered.given_up) == ((), frozenset())
    assert gathered.waiting["job_g"].startswith("waits for 2 machines") and gathered.snapshot.nodes == ()
    assert gathered.wake_at_ms == NOW_MS + 90_000
    assert rented(gather(replace(world, offers=(of_host("b"),)), its)) == ["b-1"], "it is listed again"
    elsewhere = gather(replace(world, offers=(in_cloud(),)), its)
    assert {type(one) for one in elsewhere.claims} == {Release}, "it could have both in a cloud"
    late = replace(failed, not_before_ms=NOW_MS - 120_000)
    assert {type(one) for one in gather(replace(world, jobs=(late,)), its).claims} == {Release}


def test_machines_are_not_paid_for_without_end_while_the_last_one_fails_again_and_again() -> None:
    """After twenty minutes they are given back, and the job rests; then all are tried anew."""
    its = [GangNode("node_a", "job_g", "a/A100")]
    failed = gang(avoided_offers=frozenset({of_host("b").key}), not_before_ms=NOW_MS - 1)
    for idle_ms, tries in ((1_200_000, True), (1_200_001, False)):
        idle = machine("node_a", idle_since_ms=NOW_MS - idle_ms)
        gathered = gather(seen(jobs=[failed], nodes=[idle], offers=(of_host("b"),)), its)
        assert (rented(gathered) == ["b-1"], gathered.given_up == {"job_g"}) == (tries, not tries)
        unlisted = gather(seen(jobs=[failed], nodes=[idle], offers=()), its)
        assert bool(unlisted.claims) is not tries
    assert rented(gather(seen(jobs=[failed], offers=(of_host("a"), of_host("b"))), ())) == ["a-1", "b-1"]


_HOSTS = st.lists(st.sampled_from("abcdef"), max_size=6, unique=True)


@given(_HOSTS, _HOSTS, st.integers(2, 5), st.integers(0, 3), st.sampled_from(list(NodeState)), st.booleans(), st.data())
def test_all_or_none_whatever_there_is(
    offered: list[str], has: list[str], nodes: int, cloud: int, state: NodeState, waited: bool, data: st.DataObject
) -> None:
    """What it has and what is rented for it are exactly its machines, of one site, on hosts of their own; else nothing
    is rented, and what is ready is let go."""
    own = [machine(f"node_{host}", state=data.draw(st.sampled_from([NodeState.READY, state]))) for host in has]
    its = [GangNode(f"node_{host}", "job_g", f"{host}/A100") for host in has]
    offers = [of_host(host) for host in offered] + [in_cloud(str(number)) for number in range(cloud)]
    job_g = gang(nodes=nodes, submitted_ms=0 if waited else NOW_MS)
    gathered = gather(seen(jobs=[job_g], nodes=own, offers=offers), its)
    provisions = [one for one in gathered.claims if isinstance(one, ProvisionGang)]
    begins = [one for one in gathered.claims if isinstance(one, AssignGang)]
    released = {one.node_id for one in gathered.claims if isinstance(one, Release)}
    assert len(provisions) + len(begins) <= 1
    assert not gathered.snapshot.nodes
    for claim in begins:
        assert len({place.node_id for place in claim.places}) == len(claim.places) == nodes
    for rented_now in provisions:
        kept = [one for one in own if one.node_id not in released and one.state in _HELD]
        assert len(kept) + len(rented_now.offers) == nodes
        assert len({site_of(one) for one in (*kept, *rented_now.offers)}) == 1
        hosts = [one.host for one in rented_now.offers if one.host] + [f"{one.node_id[-1]}/A100" for one in kept]
        assert len(set(hosts)) == len(hosts)
    if not provisions and not begins and not released:
        held = [one for one in own if one.state in _HELD]
        assert not held or len(held) >= nodes


_HELD = {NodeState.READY, NodeState.REQUESTED, NodeState.BOOTING, NodeState.UNKNOWN}


def test_very_many_that_wait_are_looked_at_by_and_by() -> None:
    """Twenty thousand offers and a thousand jobs: the first hundred have their turn, and nothing is quadratic."""
    hosts = tuple(of_host(f"host{number:05}") for number in range(20_000))
    jobs = [gang(f"job_{number:04}", deadline_ms=number) for number in range(1_000)]
    gathered = gather(seen(jobs=jobs, offers=hosts), ())
    placed = [one.job_id for one in gathered.claims if isinstance(one, ProvisionGang)]
    assert placed == [f"job_{number:04}" for number in range(MOST_PLACED)]
    assert gathered.waiting["job_0999"] == "waits behind 100 other jobs on several machines"
