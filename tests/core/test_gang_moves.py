"""A job on several machines leaves rented ones for cheaper ones: all together, and not before all of them are ready."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.core.gang_offers import GangNode
from app.core.gangs import ComingTogether, GatheredGangs, gather
from app.core.model.job import Caps, JobState, Resources
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.offer import Offer
from app.core.model.plan import ActionKind, AssignGang, Demote, ProvisionGang, Release
from app.core.model.run import RunState
from app.core.model.snapshot import JobView, NodeView, RunView
from app.core.policy import MoveCost, PolicyConfig
from tests.core.samples import CONFIG, NOW_MS, job, node, run
from tests.core.test_gangs import in_cloud, machine, of_host, rented, seen

HOUR_MS = 3_600_000
MOVES = replace(CONFIG, capabilities=CONFIG.capabilities | {ActionKind.MIGRATE}, moves=MoveCost(1_000, 1_000, 0))
HERE = (GangNode("node_1", "job_g", leads="run_1"), GangNode("node_2", "job_g"))
THERE = (GangNode("node_3", "job_g", "a/A100"), GangNode("node_4", "job_g", "b/A100"))
HOSTS = (of_host("a"), of_host("b"))


def trains(**changes: Any) -> JobView:
    """It has trained for an hour, of ten, on two machines of a cloud at $2 each."""
    values: dict[str, Any] = {
        "resources": Resources(nodes=2), "deadline_ms": NOW_MS + 100 * HOUR_MS, "total_run_ms": 10 * HOUR_MS,
        "done_ms": HOUR_MS - NOW_MS, "state": JobState.RUNNING,
    }  # fmt: skip
    return job("job_g", **(values | changes))


def vm(name: str, **changes: Any) -> NodeView:
    made = node(name, Tier.CONVENTIONAL, price_per_hour=Money.usd("2"), region="east", free_gpus=(), **changes)
    return replace(made, provider="cloud")


def free_vm(name: str) -> NodeView:
    return replace(vm(name), free_gpus=(0,))


def own(name: str, state: NodeState = NodeState.READY) -> NodeView:
    return machine(name, state=state, price_per_hour=Money.usd("0"))


def runs(state: RunState = RunState.RUNNING) -> tuple[RunView, RunView]:
    of = {"tier": Tier.CONVENTIONAL}
    return run("run_1", "job_g", "node_1", state, **of), run("run_2", "job_g", "node_2", **of)


def decided(
    job_view: JobView | None = None,
    *beside: NodeView,
    offers: tuple[Offer, ...] = HOSTS,
    config: PolicyConfig | None = MOVES,
    its: tuple[GangNode, ...] = (*HERE, *THERE),
    jobs: tuple[JobView, ...] = (),
    **given: Any,
) -> GatheredGangs:
    world = seen(
        jobs=(job_view or trains(), *jobs), runs=runs(), nodes=(vm("node_1"), vm("node_2"), *beside), offers=offers
    )
    return gather(world, its, config=config, **given)


def test_cheaper_machines_are_rented_together_while_it_trains() -> None:
    gathered = decided(its=HERE)
    (claim,) = gathered.claims
    assert isinstance(claim, ProvisionGang) and rented(gathered) == ["a-1", "b-1"]
    assert claim.reason == (
        "rents 2 machines at once while it trains: its 2 machines cost $0.00/h at pool lab, $4.00/h here; 9 h 0 min "
        "are left"
    )
    assert claim.versions == (("job_g", 1),)
    assert gathered.waiting == {} and gathered.given_up == frozenset()
    assert gathered.snapshot.offers == (), "nobody else gets these hosts in the same decision"


def test_the_cheaper_of_two_regions() -> None:
    offers = (in_cloud("north", "1.50"), in_cloud("west", "1.20"), in_cloud("south", "1.90"))
    assert rented(decided(offers=offers, its=HERE)) == ["vm-west", "vm-west"]
    assert rented(decided(offers=offers[2:], its=HERE)) == [], "five per cent are not enough"


@pytest.mark.parametrize(
    ("gpu_type", "moves"),
    [("T4", False), ("H100", True), ("A100-SXM4-80GB", True), ("RTX 4090", False), ("new", False)],
)
def test_another_kind_of_gpu_may_be_slower_than_it_is_cheap(gpu_type: str, moves: bool) -> None:
    """It moves from A100 to what is known to be as fast."""
    there = in_cloud("west", "0.10", gpu_type=gpu_type)
    assert rented(decided(offers=(there,), its=HERE)) == ["vm-west"] * 2 * moves


def test_fewer_than_all_are_not_rented() -> None:
    """It is said that it has looked: a market of thousands of offers is not gone through at every decision."""
    gathered = decided(offers=HOSTS[:1], its=HERE)
    assert gathered.claims == () and len(gathered.snapshot.offers) == 1
    assert gathered.stays == {"job_g": 1}
    assert decided(offers=(in_cloud("west", "3"),), its=HERE).stays == {}, "nothing there costs less"


@pytest.mark.parametrize("state", [NodeState.REQUESTED, NodeState.BOOTING])
def test_those_that_come_are_waited_for_and_nobody_else_sees_them(state: NodeState) -> None:
    gathered = decided(None, own("node_3"), own("node_4", state))
    assert gathered.claims == () and gathered.snapshot.nodes == ()


def test_it_is_asked_to_leave_once_all_are_ready() -> None:
    gathered = decided(None, own("node_3"), own("node_4"))
    (claim,) = gathered.claims
    assert isinstance(claim, Demote)
    assert (claim.job_id, claim.run_id) == ("job_g", "run_1")
    assert claim.versions == (("job_g", 1), ("run_1", 1))
    assert claim.reason.endswith("its 2 machines cost $0.00/h at pool lab, $4.00/h here; 9 h 0 min are left")
    assert gathered.snapshot.nodes == (), "they are its alone until it has left"


def test_one_whose_agent_cannot_take_part_is_no_place_to_move_to() -> None:
    deaf = replace(THERE[1], joins=False)
    gathered = decided(None, own("node_3"), own("node_4"), its=(*HERE, THERE[0], deaf), offers=())
    assert {type(one) for one in gathered.claims} == {Release}


def test_while_it_leaves_its_next_machines_are_kept() -> None:
    gathered = decided(trains(state=JobState.CHECKPOINTING), own("node_3"), own("node_4"))
    assert gathered.claims == () and gathered.snapshot.nodes == ()


def test_once_it_has_left_it_begins_on_the_cheaper_ones_though_the_others_are_there() -> None:
    nodes = (free_vm("node_1"), free_vm("node_2"), own("node_3"), own("node_4"))
    its = (GangNode("node_1", "job_g"), GangNode("node_2", "job_g"), *THERE)
    gathered = gather(seen(jobs=(trains(state=JobState.WAITING),), nodes=nodes), its, config=MOVES)
    (claim,) = gathered.claims
    assert isinstance(claim, AssignGang)
    assert [place.node_id for place in claim.places] == ["node_3", "node_4"]


def test_what_it_has_left_is_for_policies_to_end_or_to_use() -> None:
    moved = tuple(replace(one, node_id=name) for one, name in zip(runs(), ("node_3", "node_4"), strict=True))
    its = (GangNode("node_1", "job_g"), GangNode("node_2", "job_g"), replace(THERE[0], leads="run_1"), THERE[1])
    nodes = (free_vm("node_1"), free_vm("node_2"), own("node_3"), own("node_4"))
    gathered = gather(seen(jobs=(trains(),), runs=moved, nodes=nodes), its, config=MOVES)
    assert gathered.claims == ()
    assert {one.node_id for one in gathered.snapshot.nodes} == {"node_1", "node_2"}


def test_where_one_of_them_is_gone_and_no_other_comes_the_rest_is_let_go() -> None:
    """It stays where it is, and rests, as one that could not have all."""
    gathered = decided(None, own("node_3"), offers=())
    assert [(type(one), one.node_id) for one in gathered.claims if isinstance(one, Release)] == [(Release, "node_3")]
    assert gathered.given_up == {"job_g"} and gathered.waiting == {}
    again = decided(offers=HOSTS, its=HERE, resting={"job_g": NOW_MS + 60_000})
    assert again.claims == () and again.wake_at_ms == NOW_MS + 60_000


def test_one_that_is_missing_is_rented_anew() -> None:
    gathered = decided(None, own("node_3"), offers=(of_host("c"),))
    assert rented(gathered) == ["c-1"]
    assert gathered.snapshot.nodes == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"locked": True},
        {"leaving": True},
        {"unsaved": True},
        {"saves": False},  # and it has no checkpoint
        {"total_run_ms": HOUR_MS + 15_000},  # ten times as long as the move would stop it
        {"deadline_ms": NOW_MS + 9 * HOUR_MS + 1_000},  # met without the move, and missed with it
        {"not_moved_before_ms": NOW_MS + 1},
        {"state": JobState.STARTING},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_who_stays(changes: dict[str, Any]) -> None:
    config = replace(MOVES, rules=replace(MOVES.rules, move_pause_share=0.1))
    assert isinstance(decided(its=HERE, config=config).claims[0], ProvisionGang)
    gathered = decided(trains(**changes), its=HERE, config=config)
    assert gathered.claims == ()
    if "leaving" in changes:
        left = decided(trains(**changes), own("node_3"), own("node_4"), config=config)
        assert {type(one) for one in left.claims} == {Release}, "nor does it keep what it would have moved to"


def test_nobody_moves_where_nothing_may_be_asked_to_leave() -> None:
    assert decided(its=HERE, config=None).claims == ()
    without = replace(MOVES, capabilities=MOVES.capabilities - {ActionKind.DEMOTE})
    assert decided(its=HERE, config=without).claims == ()


def test_nobody_moves_where_two_places_of_a_job_are_never_paid_at_once() -> None:
    """As `ALLPASS_MOVES=stop_and_go` asks: it would have left for what may be gone when it has (ADR 0128)."""
    without = replace(MOVES, capabilities=MOVES.capabilities - {ActionKind.MIGRATE})
    assert decided(its=HERE, config=without).claims == ()


def test_one_that_has_just_begun_there_rests() -> None:
    """So that all moves together cost a small share of its time."""
    lately = tuple(replace(one, running_since_ms=NOW_MS - 1_000) for one in runs())
    world = seen(jobs=(trains(),), runs=lately, nodes=(vm("node_1"), vm("node_2")), offers=HOSTS)
    gathered = gather(world, HERE, config=MOVES)
    assert gathered.claims == () and gathered.wake_at_ms == NOW_MS - 1_000 + 400_000  # of 2 s, at 0.005


def test_of_unknown_length_it_has_to_have_run_for_as_long_as_pays_for_the_move() -> None:
    young = trains(total_run_ms=None, done_ms=0)  # thirty seconds so far, and a minute is asked for
    lately = tuple(replace(one, running_since_ms=NOW_MS - 30_000) for one in runs())
    quick = replace(MOVES, rules=replace(MOVES.rules, chase_pause_share=1.0))
    world = seen(jobs=(young,), runs=lately, nodes=(vm("node_1"), vm("node_2")), offers=HOSTS)
    gathered = gather(world, HERE, config=quick)
    assert gathered.claims == () and gathered.wake_at_ms == NOW_MS + 30_001
    later = replace(world, now_ms=NOW_MS + 30_001)
    assert rented(gather(later, HERE, config=quick)) == ["a-1", "b-1"]


def test_machines_that_fail_sooner_than_the_move_pays_are_none() -> None:
    """Whichever of them fails, the job does: of two that live for four hours each, one fails within two."""
    half = tuple(in_cloud("west", "1.00", mean_life_ms=life_ms) for life_ms in (8 * HOUR_MS, 400 * HOUR_MS))
    assert rented(decided(offers=half[:1], its=HERE)) == []
    assert rented(decided(offers=half[1:], its=HERE)) == ["vm-west", "vm-west"]


def test_that_machines_fail_there_is_no_reason_to_stay_where_they_fail_as_often() -> None:
    there = in_cloud("west", "1.00", mean_life_ms=8 * HOUR_MS)
    here = tuple(vm(name, mean_life_ms=8 * HOUR_MS) for name in ("node_1", "node_2"))
    world = seen(jobs=(trains(),), runs=runs(), nodes=here, offers=(there,))
    assert rented(gather(world, HERE, config=MOVES)) == ["vm-west", "vm-west"]


def test_what_traffic_of_their_arrival_costs_counts() -> None:
    dear = in_cloud("west", "1.00", arrival_micros=10_000_000)  # ten dollars each, to save $18 in nine hours
    assert rented(decided(offers=(dear,), its=HERE)) == []
    assert rented(decided(offers=(replace(dear, arrival_micros=1_000_000),), its=HERE)) == ["vm-west", "vm-west"]


def test_who_waits_comes_first() -> None:
    waiting = job("job_w", resources=Resources(nodes=2), submitted_ms=NOW_MS)
    gathered = decided(its=HERE, jobs=(waiting,))
    assert [one.job_id for one in gathered.claims if isinstance(one, ProvisionGang)] == ["job_w"]


def test_from_own_machines_nobody_moves() -> None:
    """They are paid for however they are used."""
    at = tuple(replace(own(name), price_per_hour=Money.usd("2"), free_gpus=()) for name in ("node_1", "node_2"))
    world = seen(jobs=(trains(),), runs=runs(), nodes=at, offers=(in_cloud("west", "0.10"),))
    assert gather(world, HERE, config=MOVES).claims == ()


def test_limits_of_the_job_hold_for_where_it_goes() -> None:
    capped = trains(caps=Caps(max_hourly=Money.usd("1")))
    assert decided(capped, offers=(in_cloud("west", "0.80"),), its=HERE).claims == ()
    assert rented(decided(capped, offers=(in_cloud("west", "0.40"),), its=HERE)) == ["vm-west", "vm-west"]


# Coming together: on hosts of a pool, under fewer switches (ADR 0123)

HERE_OWN = (GangNode("node_1", "job_g", "a/A100", leads="run_1"), GangNode("node_2", "job_g", "b/A100"))
NEXT = GangNode("node_3", "job_g", "c/A100")
CLOSER = ComingTogether("job_g", "run_1", frozenset({"c/A100"}), "its 2 machines are spread")


def together(
    *beside: NodeView,
    its: tuple[GangNode, ...] = (*HERE_OWN, NEXT),
    job_view: JobView | None = None,
    wanted: tuple[ComingTogether, ...] = (CLOSER,),
    more: tuple[RunView, ...] = (),
) -> GatheredGangs:
    here = tuple(replace(own(name), free_gpus=()) for name in ("node_1", "node_2"))
    of = {"tier": Tier.OWN}
    its_runs = run("run_1", "job_g", "node_1", **of), run("run_2", "job_g", "node_2", **of)
    world = seen(jobs=(job_view or trains(),), runs=(*its_runs, *more), nodes=(*here, *beside))
    return gather(world, its, config=MOVES, together=wanted)


def test_it_comes_together_once_what_was_rented_for_that_is_ready() -> None:
    """Until then that is its own, and nobody else's."""
    for state in (NodeState.REQUESTED, NodeState.BOOTING):
        gathered = together(own("node_3", state))
        assert gathered.claims == () and gathered.snapshot.nodes == ()
    gathered = together(own("node_3"))
    (claim,) = gathered.claims
    assert isinstance(claim, Demote) and claim.reason == "comes together: its 2 machines are spread"
    assert claim.versions == (("job_g", 1), ("run_1", 1)) and gathered.snapshot.nodes == ()


@pytest.mark.parametrize(
    "changes",
    [{"leaving": True}, {"locked": True}, {"unsaved": True}],
    ids=lambda changes: next(iter(changes)),
)
def test_what_was_rented_is_let_go_where_it_is_to_stay_after_all(changes: dict[str, Any]) -> None:
    gathered = together(own("node_3", NodeState.BOOTING), job_view=trains(**changes))
    assert [claim.node_id for claim in gathered.claims if isinstance(claim, Release)] == ["node_3"]
    assert len(gathered.claims) == 1


def test_all_of_it_is_let_go_where_a_part_does_not_come() -> None:
    more = GangNode("node_4", "job_g", "d/A100")
    wanted = replace(CLOSER, places=frozenset({"c/A100", "d/A100"}))
    gathered = together(own("node_3"), its=(*HERE_OWN, NEXT, more), wanted=(wanted,))
    assert [claim.node_id for claim in gathered.claims if isinstance(claim, Release)] == ["node_3"]
    never_joins = replace(more, joins=False)
    gathered = together(own("node_3"), own("node_4"), its=(*HERE_OWN, NEXT, never_joins), wanted=(wanted,))
    assert {claim.node_id for claim in gathered.claims if isinstance(claim, Release)} == {"node_3", "node_4"}


def test_what_comes_for_a_plan_that_was_dropped_is_let_go() -> None:
    """Also where nobody carries it on; what is ready is a machine like any other."""
    for wanted in ((), (replace(CLOSER, run_id="run_before"),)):
        gathered = together(own("node_3", NodeState.BOOTING), wanted=wanted)
        assert [claim.node_id for claim in gathered.claims if isinstance(claim, Release)] == ["node_3"]
        gathered = together(own("node_3"), wanted=wanted)
        assert gathered.claims == () and [node.node_id for node in gathered.snapshot.nodes] == ["node_3"]


@pytest.mark.parametrize("state", [JobState.CHECKPOINTING, JobState.WAITING])
def test_what_it_goes_to_is_its_own_while_its_machines_are_left_one_after_the_other(state: JobState) -> None:
    free = replace(own("node_2"), free_gpus=(0,))
    world = seen(
        jobs=(trains(state=state),),
        runs=(run("run_1", "job_g", "node_1", RunState.STOPPING, tier=Tier.OWN),),
        nodes=(replace(own("node_1"), free_gpus=()), free, own("node_3")),
    )
    gathered = gather(world, (*HERE_OWN, NEXT), config=MOVES, together=(CLOSER,))
    assert gathered.claims == () and gathered.snapshot.nodes == ()


def test_a_machine_that_it_has_left_for_another_job_is_not_its_own_any_more() -> None:
    """It moves again, whoever is there."""
    left = GangNode("node_9", "job_g", "z/A100")
    other = run("run_9", "job_other", "node_9", tier=Tier.OWN)
    taken = replace(own("node_9"), free_gpus=())
    gathered = together(own("node_3"), taken, its=(*HERE_OWN, NEXT, left), more=(other,))
    assert [type(claim) for claim in gathered.claims] == [Demote]
