"""What is bid for is for spot jobs that go on from a checkpoint, under every policy, and only where it costs less in
expectation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from app.core.board import Board
from app.core.invariants import plan_breaches
from app.core.machine_lives import Lived, MachineLives, with_lives
from app.core.market import Market, is_for
from app.core.model.job import JobState, PriorityClass
from app.core.model.money import Money
from app.core.model.node import SERVERFUL_TIERS, Tier
from app.core.model.offer import Offer
from app.core.model.plan import Assign, Migrate, MoveOut, Plan, Provision, Start
from app.core.model.snapshot import JobView, NodeView, Snapshot
from app.core.policies import policy_named, policy_names
from app.core.policy import PolicyConfig, PolicyState
from app.core.spot_places import begins_from_nothing, is_of_its_class, may_be_interrupted
from tests.core.samples import (
    ALL_ACTIONS,
    CLOUD,
    CONFIG,
    MARKET,
    NOW_MS,
    SERVERLESS,
    configs,
    job,
    node,
    offer,
    run,
    snapshot,
    snapshots,
)

HOUR_MS = 3_600_000
BELIEVED_MS = 14_000_000  # of a bid that nobody has lost yet: four hours, to two digits
SPOT = PriorityClass.SPOT
BID = replace(MARKET, offer_id="ask~bid", price_per_hour=Money.usd("0.36"), spot_only=True)
every_policy = pytest.mark.parametrize("name", policy_names())


def decide(name: str, seen: Snapshot, config: PolicyConfig = CONFIG) -> Plan:
    return policy_named(name).decide(Board.of(seen), PolicyState(), config)[0]


def spot(name: str = "job_a", **changes: Any) -> JobView:
    return job(name, **({"priority_class": SPOT} | changes))


def waiting(**changes: Any) -> JobView:
    return spot(state=JobState.WAITING, saves=False, **changes)


@pytest.mark.parametrize(
    ("who", "may"),
    [
        (job(), False),
        (spot(), True),
        (spot(saves=False), True),  # it has not begun: it may be one that saves
        (waiting(), False),
        (waiting(checkpoint_step=5), True),
        (spot(never_saves=True, saves=False), False),
        (spot(unsaved=True), False),
        (job(never_saves=True, saves=False), False),
    ],
)
def test_who_may_be_interrupted(who: JobView, may: bool) -> None:
    """Spot jobs that lose a little, and nobody who would lose all. What is lent, and asked for, is for any spot job."""
    lent_offer, lent = replace(BID, tier=Tier.OWN), node("node_own", Tier.OWN, spot_only=True)
    assert (may_be_interrupted(who), is_for(who, BID)) == (may, may)
    assert is_of_its_class(who, node("node_a", spot_only=True)) == may
    assert is_for(who, lent_offer) == is_of_its_class(who, lent) == (who.priority_class is SPOT)
    assert is_for(who, MARKET)
    assert is_of_its_class(who, node("node_a"))


def test_what_a_place_says_of_itself() -> None:
    assert [one.interruptible for one in (MARKET, BID, replace(BID, tier=Tier.OWN))] == [False, True, False]
    places = [node("a"), node("a", spot_only=True), node("a", Tier.OWN, spot_only=True)]
    assert [one.interruptible for one in places] == [False, True, False]


# Every policy


@st.composite
def mixed(draw: st.DrawFn) -> Snapshot:
    """Jobs of both classes, some of which lose all; nodes and offers of which some are bid for or lent."""
    seen = draw(snapshots())
    often = st.sampled_from([True, True, False])
    jobs = tuple(
        replace(one, priority_class=SPOT if draw(st.booleans()) else one.priority_class, unsaved=draw(st.booleans()))
        for one in seen.jobs
    )
    nodes = tuple(replace(one, spot_only=draw(often)) for one in seen.nodes)
    offers = tuple(replace(one, spot_only=draw(often)) for one in seen.offers)
    return replace(seen, jobs=jobs, nodes=nodes, offers=offers)


def places(plan: Plan, seen: Snapshot) -> list[tuple[JobView, Offer | NodeView]]:
    """Who is given what."""
    jobs, nodes = {one.job_id: one for one in seen.jobs}, {one.node_id: one for one in seen.nodes}
    given: list[tuple[JobView, Offer | NodeView]] = []
    for action in plan.actions:
        if isinstance(action, Provision):
            given.append((jobs[action.for_job_id], action.offer))
        elif isinstance(action, Start | MoveOut):
            given.append((jobs[action.job_id], action.offer))
        elif isinstance(action, Assign | Migrate):
            given.append((jobs[action.job_id], nodes[action.node_id]))
    return given


@every_policy
@settings(max_examples=100)
@given(seen=mixed(), config=configs)
def test_nobody_is_given_what_is_not_for_its_class(name: str, seen: Snapshot, config: PolicyConfig) -> None:
    """Whatever is rented, lent, idle or on its way: no guaranteed job gets what is taken back, and no job that would
    begin again from nothing what is bid for; and each that waits is told why."""
    plan = decide(name, seen, config)
    for who, place in places(plan, seen):
        if place.spot_only:
            event(f"{who.priority_class} on {'a bid' if place.tier is not Tier.OWN else 'what is lent'}")
            assert who.priority_class is SPOT
            assert place.tier is Tier.OWN or not begins_from_nothing(who)
    assert plan_breaches(seen, plan, config) == []


@every_policy
@settings(max_examples=30)
@given(seen=snapshots(), config=configs, cheaper=st.integers(1, 9))
def test_bids_change_nothing_for_guaranteed_jobs(name: str, seen: Snapshot, config: PolicyConfig, cheaper: int) -> None:
    """With bids beside every offer, and only guaranteed jobs, the same is done as without any."""
    bids = tuple(
        replace(
            one,
            offer_id=f"{one.offer_id}~bid",
            spot_only=True,
            price_per_hour=Money(1 + one.price_per_hour.micros * cheaper // 10),
        )
        for one in seen.offers
        if one.tier is not Tier.OWN
    )
    with_bids = replace(seen, offers=tuple(sorted((*seen.offers, *bids), key=lambda one: one.key)))
    before, after = decide(name, seen, config), decide(name, with_bids, config)
    assert [replace(one, reason="") for one in after.actions] == [replace(one, reason="") for one in before.actions]


@every_policy
def test_an_idle_node_that_was_bid_for_is_no_place_for_a_guaranteed_job(name: str) -> None:
    """It is not waited for, either: the job is placed as if it were not there."""
    idle = node("node_bid", spot_only=True, idle_since_ms=NOW_MS)
    coming = node("node_coming", spot_only=True, gpu_count=2)
    alone = snapshot(jobs=[job()], offers=[MARKET])
    beside = replace(alone, nodes=(idle, coming))
    plan = decide(name, beside)
    assert [place for _, place in places(plan, beside)] == [place for _, place in places(decide(name, alone), alone)]
    of_spot = replace(beside, jobs=(spot(),))
    taken = [place for _, place in places(decide(name, of_spot), of_spot)]
    assert taken == ([] if name == "modal-only" else [idle])


@every_policy
def test_one_plan_rents_a_host_in_one_way(name: str) -> None:
    """Whoever rents on demand would take it from whoever bids for it: the spot job has another, or none."""
    same = replace(BID, host="1"), replace(MARKET, host="1")
    other = replace(BID, offer_id="other~bid", host="2", price_per_hour=Money.usd("0.40"))
    seen = snapshot(jobs=[job(), spot("job_b"), spot("job_c")], offers=[*same, other])
    hosts = [place.host for _, place in places(decide(name, seen), seen) if isinstance(place, Offer)]
    assert len(set(hosts)) == len(hosts)


def test_nothing_waits_for_a_bid_that_it_may_not_have() -> None:
    """Where bids are all there is, a guaranteed job is told so, and stays where it could be had: on serverless."""
    seen = snapshot(jobs=[job()], offers=[BID])
    (told,) = decide("cheapest-first", seen).waiting
    assert "spot jobs that go on from a checkpoint alone" in told.reason
    serverless = offer("fn", Tier.SERVERLESS, "2.10")
    both = snapshot(jobs=[job(serverless_used_ms=400_000)], offers=[BID, serverless], nodes=[node("n", spot_only=True)])
    assert [type(one) for one in decide("fixed-threshold", both).actions if not hasattr(one, "node_id")] == [Start]


# What losing it costs


def learned(one: Offer, *seen: Lived) -> Offer:
    return MachineLives(seen).told_of(one)


def choose(who: JobView, *offers: Offer) -> Offer:
    choice = Market(offers, SERVERFUL_TIERS).choose(who)
    assert choice is not None
    return choice.offer


def test_a_bid_is_believed_to_be_lost_now_and_then() -> None:
    """Also before one has been; of hosts on demand nothing is said until some have failed."""
    assert (learned(BID).mean_life_ms, learned(MARKET).mean_life_ms) == (BELIEVED_MS, 0)


@pytest.mark.parametrize(
    ("who", "price", "taken"),
    [
        (spot(), "0.36", True),  # half the price
        (spot(), "0.73", False),  # next to nothing is gained
        (spot(), "0.71", True),
        (spot(saves=False, checkpoint_step=5), "0.71", False),  # it saves by itself, when it likes: it loses more
        (job(), "0.01", False),
    ],
)
def test_a_bid_is_taken_where_it_costs_less_with_what_is_lost(who: JobView, price: str, taken: bool) -> None:
    bid = learned(replace(BID, price_per_hour=Money.usd(price)))
    assert (choose(who, bid, MARKET) == bid) is taken


def test_bids_that_are_lost_often_are_not_taken_any_more() -> None:
    """Two hundred lost within an hour in all, at half the price: hosts on demand are as before, and are taken."""
    lost = Lived("local", Tier.MARKETPLACE, "A100", "proj_a", float(HOUR_MS), 200.0, interruptible=True)
    bid, market = learned(BID, lost), learned(MARKET, lost)
    assert bid.mean_life_ms < 60_000
    assert (market.mean_life_ms, choose(spot(), bid, market)) == (0, market)


def test_hosts_on_demand_that_fail_say_nothing_about_bids() -> None:
    failed = Lived("local", Tier.MARKETPLACE, "A100", "proj_a", float(HOUR_MS), 10.0)
    assert learned(BID, failed).mean_life_ms == learned(BID).mean_life_ms
    assert 0 < learned(MARKET, failed).mean_life_ms < HOUR_MS


@given(
    hours=st.lists(st.floats(0, 1_000), min_size=1, max_size=4),
    failures=st.lists(st.floats(0, 100), min_size=4, max_size=4),
)
def test_no_project_alone_makes_bids_look_worse(hours: list[float], failures: list[float]) -> None:
    """A mean life of bids is as long, at least, as all others together say."""
    seen = [
        Lived("x", Tier.MARKETPLACE, "A100", f"proj_{at}", one * HOUR_MS, failures[at], interruptible=True)
        for at, one in enumerate(hours)
    ]
    mean_ms = MachineLives(seen).mean_ms("x", Tier.MARKETPLACE, "A100", interruptible=True)
    for at in range(len(seen)) if len(seen) > 1 else ():
        fewer = MachineLives([replace(one, project_id="all") for place, one in enumerate(seen) if place != at])
        assert mean_ms >= fewer.mean_ms("x", Tier.MARKETPLACE, "A100", interruptible=True)
    assert mean_ms > 0


def test_nodes_live_as_long_as_offers_of_their_class() -> None:
    bid, h100 = node("node_bid", spot_only=True), node("node_h100", gpu_type="H100", spot_only=True)
    told = with_lives(
        [bid, node("node_on_demand"), h100], [replace(BID, mean_life_ms=7), replace(MARKET, mean_life_ms=9)]
    )
    assert [one.mean_life_ms for one in told] == [7, 9, BELIEVED_MS]


# Why


@pytest.mark.parametrize(
    ("who", "bid_price", "words"),
    [
        (spot(total_run_ms=HOUR_MS), "0.36", "by a bid that may be lost"),
        (
            spot(total_run_ms=HOUR_MS),
            "0.36",
            "with what is likely to be lost, an hour of its work costs $0.369 by a bid and $0.74 on demand",
        ),
        (spot(total_run_ms=HOUR_MS), "0.73", "and $0.74 on demand"),
        (spot(never_saves=True, saves=False), "0.36", "bids left out, as it would begin again from nothing"),
    ],
)
def test_the_reason_says_why_a_bid_is_taken_or_not(who: JobView, bid_price: str, words: str) -> None:
    bid = learned(replace(BID, price_per_hour=Money.usd(bid_price)))
    plan = decide("cheapest-first", snapshot(jobs=[who], offers=[bid, MARKET]))
    (provision,) = plan.actions
    assert words in provision.reason


def test_a_guaranteed_job_is_told_nothing_of_bids() -> None:
    (provision,) = decide("cheapest-first", snapshot(jobs=[job()], offers=[learned(BID), MARKET])).actions
    assert "bid" not in provision.reason


# Who leaves a dearer place


MOVING = replace(CONFIG, capabilities=ALL_ACTIONS)
REST_MS = 200 * (CONFIG.moves.save_ms + CONFIG.moves.load_ms)


def trains_on(place: NodeView, left_ms: int = 100 * HOUR_MS, **changes: Any) -> Snapshot:
    """A spot job that has trained there for long, and is not done for long."""
    held = spot(
        state=JobState.RUNNING, total_run_ms=REST_MS + left_ms, deadline_ms=10**10, checkpoint_step=1, **changes
    )
    live = run("run_a", "job_a", place.node_id, tier=place.tier, running_since_ms=NOW_MS - REST_MS)
    return snapshot(now_ms=NOW_MS, jobs=[held], runs=[live], nodes=[place], offers=[SERVERLESS, MARKET, CLOUD])


def rented(plan: Plan) -> list[str]:
    return [one.offer.offer_id for one in plan.actions if isinstance(one, Provision)]


def dear(price: str) -> NodeView:
    return node("node_r", Tier.CONVENTIONAL, free_gpus=(), price_per_hour=Money.usd(price))


@pytest.mark.parametrize(
    ("bid", "on_demand", "taken"),
    [
        ("0.36", "0.74", ["ask~bid"]),
        ("0.36", "2.00", ["ask~bid"]),
        ("0.66", "0.74", ["ask"]),  # it is not half of what it pays, and would be lost many times
        ("0.66", "1.25", []),
    ],
)
def test_a_long_job_leaves_what_costs_twice_as_much_as_a_bid(bid: str, on_demand: str, taken: list[str]) -> None:
    """However often it will lose one: that is in the price. Where bids are not worth it, what is on demand may be."""
    lives = MachineLives(())
    offers = [
        lives.told_of(replace(one, price_per_hour=Money.usd(usd))) for one, usd in ((BID, bid), (MARKET, on_demand))
    ]
    seen = replace(trains_on(dear("1.29")), offers=(SERVERLESS, *offers))
    plan = decide("allpass", seen, MOVING)
    assert rented(plan) == taken
    assert plan_breaches(seen, plan, MOVING) == []


def test_who_is_done_soon_is_not_likely_to_lose_it() -> None:
    """An hour is left of it, and such bids last four: a third less is worth it."""
    offers = (SERVERLESS, MachineLives(()).told_of(replace(BID, price_per_hour=Money.usd("0.66"))))
    for left_ms, taken in ((5 * HOUR_MS // 4, ["ask~bid"]), (100 * HOUR_MS, [])):
        assert rented(decide("allpass", replace(trains_on(dear("1.29"), left_ms), offers=offers), MOVING)) == taken


def test_what_is_on_demand_is_told_beside_the_bid_that_is_not_worth_it() -> None:
    offers = (SERVERLESS, MARKET, MachineLives(()).told_of(replace(BID, price_per_hour=Money.usd("0.66"))))
    plan = decide("allpass", replace(trains_on(dear("1.29")), offers=offers), MOVING)
    assert (
        "the cheapest of the marketplace offers that fit and are on demand: others are not worth a move, as with what "
        "is likely to be lost, an hour of its work costs $0.676 by a bid and $0.74 on demand"
    ) in plan.actions[0].reason


def test_a_guaranteed_job_leaves_for_what_is_on_demand() -> None:
    seen = trains_on(dear("1.29"))
    guaranteed = replace(seen.jobs[0], priority_class=PriorityClass.GUARANTEED)
    offers = (SERVERLESS, MARKET, MachineLives(()).told_of(BID))
    assert rented(decide("allpass", replace(seen, jobs=(guaranteed,), offers=offers), MOVING)) == ["ask"]
