"""What could be rented: the offers of one group of tiers, asked per need."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.machine_lives import weighed_micros
from app.core.market import Choice, Market, TooDear, kind_fits, offer_fits
from app.core.model.job import Caps, JobState, Resources
from app.core.model.money import Money
from app.core.model.node import SERVERFUL_TIERS, BillingRule, BillingStart, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.core.model.snapshot import JobView
from tests.core.samples import CLOUD, GIB, MARKET, OFFERS, SERVERLESS, job, job_views, offer, offer_lists

HOUR_MS = 3_600_000


def by_the_hour(tier: Tier, provider: str = "local") -> ProviderTraits:
    rule = BillingRule(HOUR_MS, BillingStart.REQUEST)
    return ProviderTraits(provider, tier, rule, 1, 2, 1, dies_with_run=False, preemptible=False)


def capped(dollars: str, spent: str = "0") -> JobView:
    return job(caps=Caps(max_cost=Money.usd(dollars)), spent=Money.usd(spent))


def test_tiers_come_in_their_order() -> None:
    """The first tier that fits is taken, however cheap the second; other tiers are not part of the market."""
    dear = offer("dear", Tier.MARKETPLACE, "9.00")
    market = Market((*OFFERS, dear), SERVERFUL_TIERS)
    assert market.offers == (MARKET, dear, CLOUD)
    assert market.choose(job()) == Choice(MARKET, rivals=2, left_out=0, again=False)
    assert Market([CLOUD, SERVERLESS], SERVERFUL_TIERS).choose(job()) == Choice(CLOUD, 1, 0, again=False)
    assert Market([CLOUD], (Tier.SERVERLESS,)).choose(job()) is None


def test_a_job_with_an_image_goes_where_machines_are_containers() -> None:
    """Machines that take no image are for jobs that name none; for others the next offer that fits is taken."""
    plain = replace(by_the_hour(CLOUD.tier, CLOUD.provider), takes_images=False)
    market = Market([CLOUD], SERVERFUL_TIERS, (plain,))
    wants = job(resources=Resources(base_image="pytorch:2.3.0"))
    assert market.choose(wants) is None
    assert market.choose(job()) == Choice(CLOUD, rivals=1, left_out=0, again=False)
    both = Market([CLOUD, MARKET], SERVERFUL_TIERS, (plain,))
    assert both.choose(wants) == Choice(MARKET, rivals=1, left_out=0, again=False)


def test_then_price_start_and_key() -> None:
    """Cheaper, then sooner, then by key."""
    offers = [
        offer("d", price="1", startup_ms=1),
        offer("c", price="1", startup_ms=9),
        offer("b", price="1", startup_ms=9),
        offer("a", price="2", startup_ms=0),
    ]
    assert [one.offer_id for one in Market(offers, (Tier.SERVERLESS,)).offers] == ["d", "b", "c", "a"]


def test_what_failed_is_passed_over() -> None:
    """As long as another one fits; when all failed, the best is tried again."""
    other = offer("ask2", Tier.MARKETPLACE, "0.80")
    market = Market([MARKET, other, CLOUD], SERVERFUL_TIERS)
    once = job(avoided_offers=frozenset({MARKET.key}))
    assert market.choose(once) == Choice(other, rivals=1, left_out=1, again=False)
    twice = job(avoided_offers=frozenset({MARKET.key, other.key}))
    assert market.choose(twice) == Choice(CLOUD, rivals=1, left_out=2, again=False)
    always = job(avoided_offers=frozenset({MARKET.key, other.key, CLOUD.key}))
    assert market.choose(always) == Choice(MARKET, rivals=2, left_out=0, again=True)


def test_machines_that_fail_are_weighed_with_what_work_costs_there() -> None:
    """Cheapest by the hour of work, not of rent: 1.04 x for two hours of life, 1.26 x for ten minutes."""
    brittle = offer("brittle", Tier.MARKETPLACE, "0.70", startup_ms=36_000, mean_life_ms=600_000)
    fair = offer("fair", Tier.MARKETPLACE, "0.72", startup_ms=36_000, mean_life_ms=7_200_000)
    market = Market([brittle, MARKET, fair, CLOUD], SERVERFUL_TIERS)
    assert market.offers == (MARKET, fair, brittle, CLOUD)
    assert market.choose(job()) == Choice(MARKET, rivals=3, left_out=0, again=False)


def test_a_tier_whose_machines_fail_too_often_comes_after_the_next() -> None:
    """$0.74 x 2.03 is more than $1.29; with two hours of life it is not. The choice says what it passed over."""
    brittle = replace(MARKET, mean_life_ms=120_000)
    market = Market([brittle, CLOUD], SERVERFUL_TIERS)
    assert market.choose(job()) == Choice(CLOUD, rivals=1, left_out=0, again=False, failing=brittle)
    assert market.choose(job(avoided_offers=frozenset({CLOUD.key}))) == Choice(brittle, 1, left_out=0, again=False)
    fair = replace(MARKET, mean_life_ms=7_200_000)
    assert Market([fair, CLOUD], SERVERFUL_TIERS).choose(job()) == Choice(fair, rivals=1, left_out=0, again=False)


def test_a_dear_tier_does_not_come_first_because_machines_fail() -> None:
    """Where its own fail, too, or where it costs more than the work that is lost."""
    brittle = replace(MARKET, mean_life_ms=120_000)
    worse = replace(CLOUD, mean_life_ms=120_000)
    assert Market([brittle, worse], SERVERFUL_TIERS).choose(job()) == Choice(brittle, 1, left_out=0, again=False)
    dear = replace(CLOUD, price_per_hour=Money.usd("1.60"))
    assert Market([brittle, dear], SERVERFUL_TIERS).choose(job()) == Choice(brittle, 1, left_out=0, again=False)


def test_what_the_cap_does_not_allow_is_never_taken() -> None:
    """Nor tried again; the error says which offer's first unit is least."""
    market = Market([MARKET, CLOUD], SERVERFUL_TIERS, (by_the_hour(Tier.MARKETPLACE), by_the_hour(Tier.CONVENTIONAL)))
    assert market.choose(capped("0.73")) is None
    assert market.too_dear(capped("0.73")) == TooDear(MARKET, Money.usd("0.74"))
    assert market.choose(capped("0.74")) == Choice(MARKET, 1, 0, again=False)
    assert market.choose(capped("1.00", spent="0.27")) is None
    assert market.too_dear(capped("0.74")) is None
    assert market.too_dear(job(resources=Resources(gpus_min=9))) is None  # nothing fits: no price would help


def test_a_dear_market_is_skipped_for_one_that_may_be_paid() -> None:
    """By its first unit, not by its price per hour: what is billed by the second may be taken."""
    market = Market([MARKET, CLOUD], SERVERFUL_TIERS, (by_the_hour(Tier.MARKETPLACE),))
    assert market.choose(capped("0.10")) == Choice(CLOUD, 1, 0, again=False)


@pytest.mark.parametrize(
    ("asked", "there", "fits"),
    [
        (None, "H100", True),
        ("RTX 4090", "rtx-4090", True),
        ("RTX4090", "RTX 4090", True),
        ("A100", "a100", True),
        ("A100", "A100X", False),
        ("A10", "A100", False),
        (None, "GH200", False),
        (None, "NVIDIA GB200", False),
        ("GH200", "gh-200", True),
    ],
)
def test_spellings_of_gpus(asked: str | None, there: str, fits: bool) -> None:
    """Case, spaces and dashes do not matter; letters and digits do. A GPU beside an Arm CPU is for who names it."""
    assert kind_fits(Resources(gpu_type=asked), there, 40 * GIB) is fits


def test_a_type_may_have_a_need_of_its_own() -> None:
    """Where runs corrected the prediction, that number counts, above or below the others'."""
    need = Resources(gpu_memory_bytes_min=40 * GIB, gpu_memory_bytes_by_type=(("h100", 60 * GIB), ("l40s", 30 * GIB)))
    assert kind_fits(need, "A100", 40 * GIB)
    assert not kind_fits(need, "H100", 59 * GIB)
    assert kind_fits(need, "H-100", 60 * GIB)
    assert kind_fits(need, "L40S", 30 * GIB)


def test_what_costs_the_same_goes_by_what_is_needed() -> None:
    """Of equally dear and equally quick offers that fit: the smallest memory, then the fewest GPUs; a larger one is
    left to those who need it. Money comes first: a larger GPU that is cheaper is taken."""
    like = replace(MARKET, tier=SERVERFUL_TIERS[0])
    large = replace(like, offer_id="a", gpu_memory_bytes=80 * GIB)
    several = replace(like, offer_id="b", gpu_memory_bytes=40 * GIB, gpu_count=2)
    small = replace(like, offer_id="c", gpu_memory_bytes=40 * GIB, gpu_count=1)
    cheaper = replace(large, offer_id="d", price_per_hour=Money(like.price_per_hour.micros - 1))
    asking = job(resources=Resources(gpu_memory_bytes_min=30 * GIB))

    def taken(*offers: Offer) -> str | None:
        choice = Market(offers, SERVERFUL_TIERS).choose(asking)
        return None if choice is None else choice.offer.offer_id

    assert taken(large, several, small) == "c"
    assert taken(large, several) == "b"
    assert taken(large, several, small, cheaper) == "d"


needs = st.builds(
    Resources,
    gpus_min=st.sampled_from([1, 2, 4]),
    gpu_type=st.sampled_from([None, "A100", "h100"]),
    gpu_memory_bytes_min=st.sampled_from([0, 40 * GIB]),
    cpus_min=st.sampled_from([1, 8]),
    memory_bytes_min=st.sampled_from([0, 64 * GIB]),
)


@settings(max_examples=60)
@given(offers=offer_lists, jobs=st.lists(job_views("job_a", JobState.QUEUED), min_size=1, max_size=4), need=needs)
def test_the_choice_is_the_best_that_fits(offers: list[Offer], jobs: list[JobView], need: Resources) -> None:
    """Whoever asked before: of what fits and may be paid, the first that did not fail, or else the first; or the first
    of another tier where work costs less because machines of that one's tier fail."""
    traits = tuple(by_the_hour(tier, provider) for tier in Tier for provider in "xy")
    market = Market(offers, SERVERFUL_TIERS, traits)
    for asking in (*jobs, job(resources=need), *jobs):
        fitting = [one for one in market.offers if offer_fits(asking.resources, one) and _may_pay(asking, one)]
        fresh = [one for one in fitting if one.key not in asking.avoided_offers]
        choice = market.choose(asking)
        first = next(iter(fresh or fitting), None)
        work_micros = weighed_micros(first) if first is not None and first.mean_life_ms else 0
        safer = (
            one for one in fresh or fitting if one.tier != (first and first.tier) and weighed_micros(one) < work_micros
        )
        assert (choice and choice.offer) == next(safer, first)
        assert choice is None or choice.again is (not fresh)


def _may_pay(asking: Any, one: Offer) -> bool:
    return asking.caps.max_cost is None or asking.spent + one.price_per_hour <= asking.caps.max_cost
