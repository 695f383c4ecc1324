"""Hosts of the marketplace that can be bid for: what is bid, who bids, when a bid is lost, and what comes of it."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.board import Board
from app.core.model.job import PriorityClass
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.plan import Plan
from app.core.policies import policy_named, policy_names
from app.core.policy import MoveCost, PolicyState
from app.errors import InvalidInput
from app.simulator.bids import BidMarket, below_on_demand, bid_market, with_bids, with_classes
from app.simulator.merging import MergingSimulation
from app.simulator.options import Options
from app.simulator.prices import PriceCurve, calm, flat, wandering
from app.simulator.running import simulate as simulate_trace
from app.simulator.scenario import SimulatedMarket, Task
from app.simulator.traces.generating import generate
from app.simulator.worlds.known import FRIENDLY, HARSH, MEASURED
from app.simulator.worlds.rough import RoughSimulation
from tests.simulator.scenarios import PRICES, SECOND_MS, Seen, market, simulate, task

QUICK_MOVES = MoveCost(1_000, 1_000)
DAY_S = 86_400.0
VAST = PRICES[Tier.MARKETPLACE]


def bids(*lowest: tuple[float, float], taken_s: float = 0.0, percent: int = 120) -> BidMarket:
    """The lowest bid from each moment on, as a share of the price on demand."""
    times, shares = zip(*(lowest or ((0.0, 0.5),)), strict=True)
    return BidMarket(PriceCurve(times, tuple(share * VAST for share in shares)), flat(VAST), taken_s, percent)


def spot(one: Task) -> Task:
    return replace(one, priority_class=PriorityClass.SPOT)


def play(policy: str, *tasks: Task, on: BidMarket, **changes: Any) -> Seen:
    return simulate(policy, *tasks, on=market(bids=on), moves=QUICK_MOVES, **changes)


# What is bid


def test_what_is_paid_is_what_was_bid() -> None:
    """120 % of half the price, for an hour and the wait for the machine is not billed."""
    seen = play("cheapest-first", spot(task("a", 3_600)), on=bids())
    assert seen.result.bills == {"vast": math.ceil(0.6 * VAST * 1e6)}
    beside = seen.result.figures()
    assert beside["bid_usd"] == pytest.approx(0.444)
    assert (beside["bid_gpu_hours"], beside["lost_bids"]) == (1.0, 0)


def test_a_guaranteed_job_never_bids() -> None:
    """It rents the same host on demand, beside a spot job that bids."""
    seen = play("cheapest-first", task("a", 3_600), spot(task("b", 3_600)), on=bids())
    assert seen.result.figures()["bid_gpu_hours"] == 1.0
    prices = {node.price_per_hour.micros for snapshot, _, _ in seen.snapshots for node in snapshot.nodes}
    assert prices == {740_000, 444_000}
    assert [one.cost_usd for one in seen.result.outcomes] == [pytest.approx(0.74), pytest.approx(0.444)]


def test_who_never_saves_does_not_bid() -> None:
    """All that it does would be lost with its bid."""
    seen = play("cheapest-first", spot(task("a", 3_600, saves=False)), on=bids())
    assert seen.result.figures()["bid_gpu_hours"] == 0


def test_a_bid_that_is_not_below_the_price_on_demand_is_none() -> None:
    """120 % of 90 % is above it."""
    seen = play("cheapest-first", spot(task("a", 3_600)), on=bids((0.0, 0.9)))
    assert (seen.result.figures()["bid_gpu_hours"], seen.result.bills) == (0, {"vast": 740_000})


def offer(name: str, usd: float, *, count: int = 1, tier: Tier = Tier.MARKETPLACE) -> Offer:
    return Offer("vast", name, tier, "A100", count, 80 << 30, 8, 80 << 30, Money(round(usd * 1e6)), 36_000)


def test_bids_for_dear_hosts_are_left_out_where_a_cheap_one_is_on_demand() -> None:
    """As the service does: of its own kind, and only of the marketplace's."""
    plain = (offer("cheap", 0.5), offer("dear", 1.0), offer("two", 3.0, count=2), offer("x", 0.1, tier=Tier.SERVERLESS))
    kept = below_on_demand(with_bids(plain, bids(), 0))
    assert [one.offer_id for one in kept] == ["cheap", "cheap~bid", "dear", "two", "two~bid", "x"]
    assert [one.price_per_hour.micros for one in kept if one.interruptible] == [300_000, 1_800_000]


def test_what_costs_nothing_cannot_be_bid_for() -> None:
    free = BidMarket(flat(0.0), flat(0.0), 0.0)
    assert with_bids((offer("a", 0.0),), free, 0) == (offer("a", 0.0),)


# When it is lost


def test_whoever_bids_less_than_others_loses_the_host() -> None:
    """Others bid 70 % from 2,000 s on, which is more than 60: the job goes on from its last save, on a bid of 84 %."""
    seen = play("cheapest-first", spot(task("a", 3_000)), on=bids((0.0, 0.5), (2_000.0, 0.7)))
    done = seen.outcome("a")
    assert (done.lost_bids, done.faults, done.tiers) == (1, 0, "mm")
    assert [at_s for at_s, kind in seen.course() if kind == "provision"] == [0, 2_000]
    assert 0 < done.lost_ms < 600 * SECOND_MS
    first, second = math.ceil(0.6 * VAST * 1e6 * 1_964 / 3_600), 0.84 * VAST * 1e6
    assert seen.result.bills["vast"] > first
    assert seen.result.bills["vast"] == pytest.approx(
        first + second * (done.finished_ms / 1000 - 2_036) / 3_600, abs=200
    )


def test_a_bid_of_more_holds_for_longer() -> None:
    seen = play("cheapest-first", spot(task("a", 3_000)), on=bids((0.0, 0.5), (2_000.0, 0.7), percent=150))
    assert (seen.outcome("a").lost_bids, seen.outcome("a").tiers) == (0, "m")


def test_a_bid_that_is_lost_before_the_machine_is_there_is_lost_when_it_comes() -> None:
    seen = play("cheapest-first", spot(task("a", 3_000)), on=bids((0.0, 0.5), (10.0, 0.7)))
    assert [at_s for at_s, kind in seen.course() if kind == "provision"] == [0, 36.001]
    assert (seen.outcome("a").lost_bids, seen.outcome("a").lost_ms) == (1, 1)


def test_lost_again_and_again_it_ends_all_the_same() -> None:
    """Somebody rents on demand what was bid for, after 20 minutes on average: five hours of work, in stretches."""
    seen = play("allpass", spot(task("a", 18_000)), on=bids(taken_s=1_200.0))
    assert seen.outcome("a").finished_ms > 0
    assert not seen.outcome("a").missed


def test_where_bids_are_lost_after_a_minute_nobody_bids_for_long() -> None:
    """What is learned of them makes them dearer than the price on demand."""
    tasks = [spot(task(f"a{at}", 3_600, at_s=at * 600)) for at in range(30)]
    seen = play("allpass", *tasks, on=bids(taken_s=60.0))
    lost = [one.lost_bids for one in seen.result.outcomes]
    assert sum(lost[:5]) > 0
    assert sum(lost[20:]) < sum(lost[:10])


@given(st.integers(0, 10**6), st.floats(0, DAY_S), st.floats(0, 7_200), st.sampled_from([100, 120, 200]))
def test_it_is_never_lost_before_the_machine_is_ready(seed: int, bid_s: float, boots_s: float, percent: int) -> None:
    """And a higher bid for the same host is never lost sooner, as long as nobody rents it on demand."""
    found = replace(bid_market(MEASURED, flat(VAST), seed, DAY_S, percent), taken_s=0.0)
    chance = random.Random(seed)
    lost_s = found.lost_s(bid_s, bid_s + boots_s, chance)
    assert lost_s >= bid_s + boots_s
    assert replace(found, percent=percent + 10).lost_s(bid_s, bid_s + boots_s, chance) >= lost_s
    if not math.isinf(lost_s):
        assert found.lowest.at(lost_s) > found.lowest.at(bid_s) * percent / 100


# The market


def test_the_lowest_bid_wanders_about_its_median() -> None:
    """Its logarithm has the standard deviation that the world says, and the same seed draws the same."""
    found = bid_market(MEASURED, flat(VAST), 1, 200 * DAY_S)
    logs = [math.log(usd / VAST) for usd in found.lowest.usd_per_gpu_hour]
    mean = sum(logs) / len(logs)
    assert mean == pytest.approx(math.log(0.5), abs=0.05)
    assert math.sqrt(sum((one - mean) ** 2 for one in logs) / len(logs)) == pytest.approx(0.24, rel=0.1)
    assert found == bid_market(MEASURED, flat(VAST), 1, 200 * DAY_S)
    assert found != bid_market(MEASURED, flat(VAST), 2, 200 * DAY_S)


def test_it_follows_the_price_on_demand() -> None:
    """Of a market that moves, at each of its changes; whatever the horizon, the beginning is the same."""
    on_demand = PriceCurve((-50.0, 130.0, 900.0), (1.0, 2.0, 1.0))
    found, longer = (bid_market(MEASURED, on_demand, 3, horizon_s) for horizon_s in (1_000.0, DAY_S))
    assert found.lowest.times_s[:5] == (-50.0, 0.0, 130.0, 600.0, 900.0)
    assert found.lowest.at(130) == pytest.approx(2 * found.lowest.at(0))
    assert [found.lowest.at(at_s) for at_s in (0, 200, 700, 950)] == [
        longer.lowest.at(at_s) for at_s in (0, 200, 700, 950)
    ]


def test_what_wanders_is_as_wide_as_one() -> None:
    drawn = wandering("a", 300 * DAY_S, 3_600.0)
    assert math.sqrt(sum(one * one for one in drawn) / len(drawn)) == pytest.approx(1, rel=0.1)
    with pytest.raises(InvalidInput, match="horizon_s"):
        wandering("a", math.inf, 3_600.0)


def test_offers_change_when_bids_do() -> None:
    """And with what is on demand."""
    on = SimulatedMarket({Tier.MARKETPLACE: calm(1, 3_600)}, bids=bids((0.0, 0.5), (100.0, 0.6)))
    assert [on.next_change_s(0), on.next_change_s(100)] == [100.0, 600.0]
    assert SimulatedMarket({Tier.MARKETPLACE: flat(1.0)}).next_change_s(0) is None


@given(st.integers(0, 1_000), st.floats(0, 1), st.floats(0, 1))
def test_who_bids_with_a_small_share_does_with_a_large_one(seed: int, one: float, other: float) -> None:
    """The same jobs otherwise, so that two shares can be compared."""
    tasks = [task(f"a{at}", 60) for at in range(50)]
    few, many = (with_classes(tasks, share, seed) for share in sorted((one, other)))
    spot_few, spot_many = ({a.job_id for a in drawn if a.priority_class == PriorityClass.SPOT} for drawn in (few, many))
    assert spot_few <= spot_many
    assert [replace(a, priority_class=PriorityClass.GUARANTEED) for a in many] == tasks


# Whole simulations


@pytest.mark.parametrize("policy", policy_names())
def test_under_every_policy_bids_are_for_spot_jobs_alone(policy: str) -> None:
    """Every plan is held against the rules that hold for all policies, and no job is lost."""
    tasks = [task(f"a{at}", 900 + 400 * at, at_s=at * 120) for at in range(12)]
    tasks = [spot(one) if at % 2 else one for at, one in enumerate(tasks)]
    seen = play(policy, *tasks, on=bids((0.0, 0.5), (1_500.0, 0.65), (4_000.0, 0.45), taken_s=3_000.0))
    assert all(one.finished_ms for one in seen.result.outcomes)
    guaranteed = {one.job_id for one in tasks if one.priority_class == PriorityClass.GUARANTEED}
    for snapshot, _, _ in seen.snapshots:
        bid_for = {node.node_id for node in snapshot.nodes if node.interruptible}
        assert not any(run.node_id in bid_for and guaranteed & set(run.job_ids) for run in snapshot.runs)
    assert not any(one.lost_bids for one in seen.result.outcomes if one.job_id in guaranteed)


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from(["friendly", "measured", "harsh"]), st.sampled_from(["allpass", "hpa"]))
def test_every_dollar_and_hour_is_somebody_s(seed: int, world: str, policy: str) -> None:
    """What was bid for is part of the marketplace's bill and hours; figures are there in every world."""
    words = {"world": world, "bids": "0.7", "knowledge": "none", "move-seconds": "5"}
    options = Options()
    for name, text in words.items():
        options = options.having(name, text)
    found = simulate_trace(generate("seren", 25, seed), [policy], options, [seed])["policies"][policy]
    assert 0 <= found["bid_usd"] <= found["cost_by_provider_usd"].get("vast", 0) + 1e-9
    assert 0 <= found["bid_gpu_hours"] <= found["gpu_hours_by_provider"].get("vast", 0) + 1e-9
    assert bool(found["bid_usd"]) == bool(found["bid_gpu_hours"])
    assert found["bid_gpu_hours"] or not found["lost_bids"], "nobody loses what nobody had"


def test_in_a_rough_world_one_host_is_rented_in_one_way() -> None:
    """Hosts are numbered, whichever way they are rented; two of three are taken by whoever comes first."""
    world = MEASURED.having({"marketplace.hosts": 2, "marketplace.drought_share": 0.0, "marketplace.never_share": 0.0})
    tasks = [task("a", 3_600), spot(task("b", 3_600)), spot(task("c", 3_600, at_s=5))]
    seen = play("cheapest-first", *tasks, on=bids(), kind=RoughSimulation, world=world)
    most = max(sum(node.tier == Tier.MARKETPLACE for node in snapshot.nodes) for snapshot, _, _ in seen.snapshots)
    assert most == 2
    assert all(one.finished_ms for one in seen.result.outcomes)


@pytest.mark.parametrize("seed", range(4))
def test_with_merging_nobody_but_spot_jobs_is_on_a_bid(seed: int) -> None:
    """Alone or with another: who trains on a bid is joined by nobody, who would lose it with him."""
    options = Options()
    for name, text in {"bids": "0.6", "merge-able": "1", "merging": "on", "move-seconds": "5"}.items():
        options = options.having(name, text)
    using = options.config()
    scenario = options.scenario(generate("seren", 60, seed), seed, using)
    assert scenario.market.bids is not None
    often = replace(scenario, market=replace(scenario.market, bids=replace(scenario.market.bids, taken_s=900.0)))
    spot_jobs = {one.job_id for one in often.tasks if one.priority_class == PriorityClass.SPOT}
    on_bids: set[tuple[str, ...]] = set()

    def watch(board: Board, _plan: Plan, _state: PolicyState) -> None:
        seen = board.snapshot()
        bid_for = {node.node_id for node in seen.nodes if node.interruptible}
        on_bids.update(run.job_ids for run in seen.runs if run.node_id in bid_for)

    result = MergingSimulation(often, policy_named("allpass"), using, watch).run()
    assert all(one.finished_ms for one in result.outcomes)
    assert any(one.merged for one in result.outcomes)
    assert on_bids
    assert {job for job_ids in on_bids for job in job_ids} <= spot_jobs
    assert not any(one.lost_bids for one in result.outcomes if one.job_id not in spot_jobs)


# Asked for


def test_bids_save_money() -> None:
    """Long jobs, all of them spot jobs: a tenth less at least, and hardly more of them late."""
    trace = generate("philly", 60, 1)
    asked = Options().having("move-seconds", "5")
    with_, without = (
        simulate_trace(trace, ["allpass"], asked.having("bids", share), range(2))["policies"]["allpass"]
        for share in ("1", "0")
    )
    assert with_["cost_usd"] < 0.9 * without["cost_usd"]
    assert with_["lost_bids"] > 0
    assert "lost_bids" not in without
    assert with_["deadline_miss_share"] < without["deadline_miss_share"] + 0.05


def test_a_share_that_is_none_is_refused() -> None:
    for text in ("1.5", "-1", "half", ""):
        with pytest.raises(InvalidInput, match=r"--bids: .* is no share of the jobs"):
            Options().having("bids", text)
    assert Options().having("bids", "0.5").told()["bids"] == "0.5"
    assert "bids" not in Options().told()


def test_it_has_no_bound() -> None:
    asked = Options().having("bids", "0.5")
    assert not asked.has_bound
    with pytest.raises(InvalidInput, match="--bids 0"):
        simulate_trace(generate("seren", 5, 0), ["clairvoyant"], asked)


def test_where_there_is_no_marketplace_nothing_is_bid_for() -> None:
    seen = simulate("allpass", spot(task("a", 600)), on=market(Tier.SERVERLESS))
    assert "lost_bids" not in seen.result.figures()


def test_what_is_bid_can_be_set() -> None:
    """`--sweep market.bid_percent=100,120,150`."""
    asked = Options().having("bids", "1").having("bid_percent", "150")
    scenario = asked.scenario(generate("seren", 5, 0), 0, asked.config())
    assert scenario.market.bids is not None
    assert scenario.market.bids.percent == 150
    with pytest.raises(InvalidInput, match="bid_percent"):
        asked.having("bid_percent", "0")


def test_worlds_differ_in_how_bids_are_lost() -> None:
    """The friendly one has those of the measured one: whoever asks for bids asks how they are lost."""
    names = ("bid_share", "bid_sd_share", "bid_forgets_s", "bid_taken_s")
    assert [getattr(FRIENDLY, name) for name in names] == [getattr(MEASURED, name) for name in names]
    assert HARSH.bid_taken_s < MEASURED.bid_taken_s
