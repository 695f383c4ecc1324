"""A job on several machines goes on with more or fewer: what it lacks is rented while it trains, all or none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.gang_offers import COMING, GangNode
from app.core.gang_wishes import no_longer_wanted
from app.core.gangs import GatheredGangs, gather
from app.core.model.job import Caps, JobState, MostUnderOne, Resources
from app.core.model.money import Money
from app.core.model.node import NodeState
from app.core.model.offer import Offer
from app.core.model.plan import AssignGang, Demote, ProvisionGang, Release
from app.core.model.snapshot import JobView, NodeView
from tests.core.samples import NOW_MS, job, run
from tests.core.test_gang_moves import MOVES
from tests.core.test_gangs import machine, of_host, rented, seen

HERE = (GangNode("node_1", "job_g", "h1/A100", leads="run_1"), GangNode("node_2", "job_g", "h2/A100"))
NEXT = (GangNode("node_3", "job_g", "h3/A100"), GangNode("node_4", "job_g", "h4/A100"))
HOSTS = (of_host("h3"), of_host("h4"))


def wants(nodes: int | None, has: int = 2, **changes: Any) -> JobView:
    """It trains on two machines, and its owner wants it on another number."""
    given: dict[str, Any] = {"resources": Resources(nodes=has, nodes_wanted=nodes), "state": JobState.RUNNING}
    return job(**({"job_id": "job_g"} | given | changes))


def busy(name: str) -> NodeView:
    return machine(name, free_gpus=())


def decided(
    job_view: JobView,
    *beside: NodeView,
    offers: tuple[Offer, ...] = HOSTS,
    its: tuple[GangNode, ...] = (*HERE, *NEXT),
    **more: Any,
) -> GatheredGangs:
    """While it trains, or is about to leave, on two machines."""
    runs = run("run_1", "job_g", "node_1"), run("run_2", "job_g", "node_2")
    world = seen(jobs=(job_view,), runs=runs, nodes=(busy("node_1"), busy("node_2"), *beside), offers=offers)
    return gather(world, its, config=MOVES, **more)


def waits(job_view: JobView, *nodes: NodeView, offers: tuple[Offer, ...] = (), **more: Any) -> GatheredGangs:
    """Once it has left."""
    waiting = replace(job_view, state=JobState.WAITING)
    return gather(seen(jobs=(waiting,), nodes=nodes, offers=offers), (*HERE, *NEXT), **more)


def begins_on(gathered: GatheredGangs) -> list[str]:
    return [place.node_id for one in gathered.claims if isinstance(one, AssignGang) for place in one.places]


def let_go(gathered: GatheredGangs) -> list[str]:
    return sorted(one.node_id for one in gathered.claims if isinstance(one, Release))


def test_what_it_lacks_is_rented_at_once_while_it_trains() -> None:
    gathered = decided(wants(4))
    (claim,) = gathered.claims
    assert isinstance(claim, ProvisionGang) and rented(gathered) == ["h3-1", "h4-1"]
    assert claim.reason == "rents 2 machines at once while it trains: its owner wants it on 4, not 2"
    assert gathered.fewer == {} and gathered.waiting == {}
    assert gathered.snapshot.offers == (), "nobody else gets them in the same decision"


def test_it_leaves_when_all_of_them_are_ready_and_not_before() -> None:
    coming = decided(wants(4), machine("node_3"), machine("node_4", state=NodeState.BOOTING), offers=())
    assert coming.claims == () and coming.snapshot.nodes == (), "they are its alone"
    (claim,) = decided(wants(4), machine("node_3"), machine("node_4"), offers=()).claims
    assert isinstance(claim, Demote) and claim.run_id == "run_1"
    assert claim.reason == "goes on with 4 machines, not 2: all of them are ready"
    assert claim.versions == (("job_g", 1), ("run_1", 1))


def test_machines_that_cannot_take_part_are_not_counted() -> None:
    its = (*HERE, replace(NEXT[0], joins=False), NEXT[1])
    assert rented(decided(wants(3), machine("node_3"), its=its, offers=(of_host("h9"),))) == ["h9-1"]


@pytest.mark.parametrize("offers", [(), (of_host("h3"),)])
def test_where_not_all_of_them_are_free_none_is_rented_and_it_says_what_is_missing(offers: tuple[Offer, ...]) -> None:
    gathered = decided(wants(4), offers=offers)
    assert gathered.claims == ()
    count = "1 of them is free now" if offers else "none of them are free now"
    assert gathered.fewer == {"job_g": f"it lacks 2 more machines with 1 x A100 at pool lab: {count}"}
    assert gathered.snapshot.offers == offers, "others may have it"


def test_its_limit_per_hour_counts_all_of_them() -> None:
    def priced(most: str) -> GatheredGangs:
        dear = tuple(replace(one, price_per_hour=Money.usd("2")) for one in HOSTS)
        return decided(wants(4, caps=Caps(max_hourly=Money.usd(most))), offers=dear)

    free = priced("100")
    assert len(rented(free)) == 2
    assert rented(priced("4")) == [], "its own two are paid for as well"
    assert "its limits" in priced("4").fewer["job_g"]


def test_where_one_fails_another_one_is_rented_and_without_it_the_rest_are_let_go() -> None:
    one = (machine("node_3"), machine("node_4", state=NodeState.UNREACHABLE))
    assert rented(decided(wants(4), *one, offers=(of_host("h5"),))) == ["h5-1"]
    gathered = decided(wants(4), *one, offers=())
    assert let_go(gathered) == ["node_3"] and gathered.given_up == {"job_g"}
    assert gathered.fewer == {"job_g": "not all of its next machines came"}


def test_they_are_not_paid_for_without_end_while_the_last_one_fails_again_and_again() -> None:
    old = machine("node_3", idle_since_ms=NOW_MS - 1_200_001)
    gathered = decided(wants(4), old, offers=(of_host("h5"),))
    assert let_go(gathered) == ["node_3"] and rented(gathered) == []


def test_it_rests_after_it_could_not_have_all() -> None:
    gathered = decided(wants(4), resting={"job_g": NOW_MS + 60_000})
    assert gathered.claims == () and gathered.fewer == {} and gathered.wake_at_ms == NOW_MS + 60_000
    assert len(rented(decided(wants(4), resting={"job_g": NOW_MS}))) == 2


@pytest.mark.parametrize("changes", [{"leaving": True}, {"unsaved": True}])
def test_one_that_is_to_pause_or_would_lose_its_steps_lets_them_go(changes: dict[str, Any]) -> None:
    gathered = decided(wants(3, **changes), machine("node_3"))
    assert let_go(gathered) == ["node_3"] and rented(gathered) == []


def test_a_wish_that_was_taken_back_lets_those_go_that_have_not_come() -> None:
    gathered = decided(wants(None), machine("node_3"), machine("node_4", state=NodeState.BOOTING))
    assert let_go(gathered) == ["node_4"]
    assert "node_3" in {node.node_id for node in gathered.snapshot.nodes}, "policies end it, or use it"


@pytest.mark.parametrize(
    ("changes", "state", "rented_for", "is_let_go"),
    [
        ({}, NodeState.BOOTING, "job_g", True),
        ({"state": JobState.CHECKPOINTING}, NodeState.REQUESTED, "job_g", True),
        ({}, NodeState.READY, "job_g", False),
        ({}, NodeState.BOOTING, None, False),
        ({}, NodeState.BOOTING, "job_b", False),
        ({"resources": Resources(nodes=1, nodes_wanted=2)}, NodeState.BOOTING, "job_g", False),
        ({"resources": Resources(nodes=2)}, NodeState.BOOTING, "job_g", False),
        ({"job_id": "job_w", "state": JobState.WAITING}, NodeState.BOOTING, "job_w", False),
    ],
    ids=[
        "it comes", "it is asked for", "it is there", "by a policy", "another's", "wants two", "has several", "waits",
    ],
)  # fmt: skip
def test_what_comes_for_a_job_that_is_to_stay_on_one_machine(
    changes: dict[str, Any], state: NodeState, rented_for: str | None, is_let_go: bool
) -> None:
    its, coming = wants(None, has=1, **changes), machine("node_2", state=state)
    world = seen(jobs=(its,), runs=(run("run_1", "job_g", "node_1"),), nodes=(busy("node_1"), coming))
    rented = {} if rented_for is None else {"node_2": rented_for}
    assert no_longer_wanted(world, rented) == ([coming] if is_let_go else [])
    moving = replace(world, runs=(*world.runs, run("run_2", "job_g", "node_2")))
    assert no_longer_wanted(moving, rented) == [], "its next run is there"


def test_code_that_does_not_stop_at_one_step_is_never_asked_to() -> None:
    its = (replace(HERE[0], leads=""), HERE[1], *NEXT)
    assert decided(wants(3), machine("node_3"), its=its).claims == ()


def test_while_it_leaves_they_stay_its_own() -> None:
    leaves = wants(3, state=JobState.CHECKPOINTING)
    gathered = decided(leaves, machine("node_3"))
    assert gathered.claims == () and gathered.snapshot.nodes == ()


def test_it_begins_on_the_old_ones_and_the_new_ones() -> None:
    ready = [machine(f"node_{number}") for number in (1, 2, 3, 4)]
    assert begins_on(waits(wants(4), *ready)) == ["node_1", "node_2", "node_3", "node_4"]


def test_a_machine_that_is_lost_once_it_has_left_is_not_waited_for() -> None:
    """It begins on as many as it had: also where one of these is a new one."""
    assert begins_on(waits(wants(3), machine("node_1"), machine("node_2"))) == ["node_1", "node_2"]
    assert begins_on(waits(wants(3), machine("node_1"), machine("node_3"))) == ["node_1", "node_3"]
    alone = waits(wants(3), machine("node_1"), offers=HOSTS)
    assert rented(alone) == ["h3-1"] and begins_on(alone) == []


def test_to_fewer_it_begins_on_some_of_its_own_and_the_dearest_is_left() -> None:
    prices = {"node_1": "3", "node_2": "1", "node_3": "2"}
    ready = [machine(name, price_per_hour=Money.usd(price)) for name, price in prices.items()]
    assert begins_on(waits(wants(2, has=3), *ready)) == ["node_2", "node_3"]
    assert begins_on(waits(wants(1, has=3), *ready)) == ["node_2"]


def test_to_fewer_it_stays_under_one_switch() -> None:
    ready = [machine(f"node_{number}") for number in (1, 2, 3)]
    domains = {"h1": ("", "leaf-1"), "h2": ("", "leaf-2"), "h3": ("", "leaf-2")}
    assert begins_on(waits(wants(2, has=3), *ready, domains=domains)) == ["node_2", "node_3"]


def test_to_fewer_where_some_were_lost_it_needs_no_more_than_it_is_to_have() -> None:
    assert begins_on(waits(wants(2, has=4), machine("node_2"), machine("node_4"))) == ["node_2", "node_4"]
    assert rented(waits(wants(2, has=4), machine("node_2"), offers=HOSTS)) == ["h3-1"]


def test_one_that_is_to_be_on_one_machine_and_has_none_is_a_job_like_any_other() -> None:
    waiting = wants(1, state=JobState.WAITING)
    gathered = gather(seen(jobs=(waiting,), offers=HOSTS), ())
    (left,) = gathered.snapshot.jobs
    assert left.resources == Resources() and gathered.claims == ()
    held = gather(seen(jobs=(waiting,), nodes=(machine("node_1"),)), HERE[:1])
    assert begins_on(held) == ["node_1"] and held.snapshot.jobs == ()


def test_how_far_apart_it_is_to_be_holds_for_all_of_them() -> None:
    apart = wants(3, most_under_one=MostUnderOne(switch=1))
    domains = {"h1": ("", "leaf-1"), "h2": ("", "leaf-2"), "h3": ("", "leaf-1"), "h4": ("", "leaf-3")}
    assert rented(decided(apart, domains=domains)) == ["h4-1"]
    gathered = decided(apart, domains=domains | {"h4": ("", "leaf-2")})
    assert rented(gathered) == [] and "how far apart" in gathered.fewer["job_g"]


def single(
    job_view: JobView, *beside: NodeView, its: tuple[GangNode, ...] = (HERE[0], *NEXT), **seen_: Any
) -> GatheredGangs:
    """While it trains on one machine."""
    given: dict[str, Any] = {"runs": (run("run_1", "job_g", "node_1"),), "offers": HOSTS} | seen_
    world = seen(jobs=(job_view,), nodes=(busy("node_1"), *beside), **given)
    return gather(world, its, config=MOVES)


def test_from_one_machine_to_several_and_no_policy_sees_it_meanwhile() -> None:
    alone = wants(3, has=1)
    gathered = single(alone)
    assert rented(gathered) == ["h3-1", "h4-1"]
    assert gathered.snapshot.jobs == gathered.snapshot.nodes == gathered.snapshot.runs == ()
    coming = single(alone, machine("node_3"), machine("node_4", state=NodeState.BOOTING), offers=())
    assert coming.claims == () and coming.snapshot.jobs == coming.snapshot.nodes == ()
    (claim,) = single(alone, machine("node_3"), machine("node_4"), offers=()).claims
    assert isinstance(claim, Demote)
    leaves = single(replace(alone, state=JobState.CHECKPOINTING), machine("node_3"), machine("node_4"))
    assert leaves.claims == () and leaves.snapshot.nodes == ()
    ready = [machine(f"node_{number}") for number in (1, 3, 4)]
    assert begins_on(waits(alone, *ready)) == ["node_1", "node_3", "node_4"]
    assert begins_on(waits(alone, *ready[:2])) == ["node_1"], "not all are there any more"


def test_where_it_cannot_have_them_it_is_a_job_like_any_other() -> None:
    alone = wants(3, has=1)
    gathered = single(alone, offers=HOSTS[:1])
    assert gathered.snapshot.jobs == (alone,) and len(gathered.snapshot.runs) == len(gathered.snapshot.nodes) == 1
    assert "it lacks 2 more machines" in gathered.fewer["job_g"]
    assert waits(alone).snapshot.jobs == (replace(alone, state=JobState.WAITING),)


@pytest.mark.parametrize("has", [1, 2])
def test_whoever_waits_comes_first(has: int) -> None:
    """Also after a job that is due earlier, and only wants more."""
    waiting = job("job_w", resources=Resources(nodes=2), deadline_ms=NOW_MS + 10_000_000)
    wanting = wants(has + 2, has=has, deadline_ms=NOW_MS + 1_000)
    runs = tuple(run(f"run_{number}", "job_g", f"node_{number}") for number in range(1, has + 1))
    nodes = tuple(busy(f"node_{number}") for number in range(1, has + 1))
    gathered = gather(seen(jobs=(wanting, waiting), runs=runs, nodes=nodes, offers=HOSTS), HERE, config=MOVES)
    (claim,) = gathered.claims
    assert isinstance(claim, ProvisionGang) and claim.job_id == "job_w"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"its": ()}, "rented for another job"),
        ({"its": (replace(HERE[0], joins=False),)}, "of an earlier release"),
        ({"runs": (run("run_1", "job_g", "node_1"), run("run_9", "job_b", "node_1"))}, "shares its machine"),
        ({"runs": (run("run_1", "job_g", "node_1"), run("run_9", "job_g", "node_9"))}, "on its way"),
    ],
)
def test_its_own_machine_has_to_be_one_that_can_be_one_of_several(changes: dict[str, Any], why: str) -> None:
    gathered = single(wants(3, has=1), **changes)
    assert gathered.claims == () and why in gathered.fewer["job_g"]
    assert len(gathered.snapshot.jobs) == 1


_STATES = (NodeState.READY, NodeState.BOOTING, NodeState.REQUESTED, NodeState.UNREACHABLE, NodeState.DRAINING)


@given(
    wanted=st.none() | st.integers(1, 6),
    beside=st.lists(st.sampled_from(_STATES), max_size=5),
    joins=st.integers(0, 31),
    hosts=st.integers(0, 5),
    state=st.sampled_from((JobState.RUNNING, JobState.CHECKPOINTING, JobState.WAITING)),
    leaving=st.booleans(),
    rests=st.booleans(),
)
def test_whatever_there_is(
    wanted: int | None,
    beside: list[NodeState],
    joins: int,
    hosts: int,
    state: JobState,
    leaving: bool,
    rests: bool,
) -> None:
    """It rents all that it lacks or nothing, leaves only for as many as its owner wants, which are all ready, and
    begins on as many as that, or as it had; no machine is given out twice, and none that others see."""
    nodes = [machine(f"node_{number}", state=it) for number, it in enumerate(beside, start=3)]
    its = (*HERE, *(GangNode(f"node_{n}", "job_g", f"h{n}/A100", bool(joins >> n & 1)) for n in range(3, 8)))
    offers = tuple(of_host(f"o{number}") for number in range(hosts))
    view = wants(wanted, state=state, leaving=leaving and state is not JobState.WAITING)
    resting = {"job_g": NOW_MS + 60_000} if rests else {}
    if state is JobState.WAITING:
        own = (machine("node_1"), machine("node_2"))
        gathered = gather(seen(jobs=(view,), nodes=(*own, *nodes), offers=offers), its, resting=resting)
    else:
        gathered = decided(view, *nodes, offers=offers, its=its, resting=resting)
    able = {one.node_id for one in its}
    able &= {node.node_id for node in nodes if node.state is NodeState.READY and joins >> int(node.node_id[5:]) & 1}
    coming = {node.node_id for node in nodes if node.state in COMING}
    taken = rented(gathered)
    assert len(taken) == len(set(taken))
    seen_by_others = {node.node_id for node in gathered.snapshot.nodes}
    assert not {"node_1", "node_2"} & seen_by_others
    for claim in gathered.claims:
        if isinstance(claim, ProvisionGang) and state is not JobState.WAITING:
            assert wanted is not None and not view.leaving
            assert len(taken) + 2 + len(able | coming) == wanted
            assert not (able | coming) & seen_by_others
        if isinstance(claim, Demote):
            assert wanted is not None and state is JobState.RUNNING and not view.leaving
            assert 2 + len(able) >= wanted > 2 and not able & set(let_go(gathered))
    if state is JobState.WAITING:
        count = len(begins_on(gathered))
        ready = 2 + len(able)
        assert count == (wanted if wanted is not None and wanted <= ready else 2)
    assert not gathered.fewer or (wanted or 0) > 2
