"""What a market has for many numbers of GPUs at once is what it has for each of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.market import Market
from app.core.model.budget import Allowance
from app.core.model.image import ImageState, ImageView
from app.core.model.job import Caps, JobState, PriorityClass, Resources
from app.core.model.money import Money
from app.core.model.node import SERVERFUL_TIERS, BillingRule, BillingStart, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.core.model.snapshot import JobView
from app.core.offers_by_size import SizedOffer
from tests.core.samples import job, job_views, offer, offer_lists

HOUR = BillingRule(3_600_000, BillingStart.REQUEST)
PLACES = [(provider, tier) for provider in "xy" for tier in Tier]
KEYS = [f"{provider}/{number}" for provider in "xy" for number in range(8)]


def traits(provider: str, tier: Tier, **changes: Any) -> ProviderTraits:
    return ProviderTraits(provider, tier, HOUR, 1, 2, 1, dies_with_run=False, preemptible=False, **changes)


several = st.lists(
    st.builds(
        Offer,
        provider=st.sampled_from("xy"),
        offer_id=st.sampled_from("01234567"),
        tier=st.sampled_from(Tier),
        gpu_type=st.sampled_from(["A100", "a-100", "H100"]),
        gpu_count=st.sampled_from([1, 2, 3, 8]),
        gpu_memory_bytes=st.sampled_from([40, 80]),
        cpus=st.sampled_from([4, 8]),
        memory_bytes=st.sampled_from([100, 200]),
        price_per_hour=st.integers(1, 6).map(Money.usd),
        startup_ms=st.sampled_from([0, 60_000]),
        mean_life_ms=st.sampled_from([0, 0, 600_000, 7_200_000]),
        arrival_ms=st.sampled_from([0, 0, 300_000]),
        projects=st.sampled_from([(), (), ("proj_a",), ("proj_b",)]),
        spot_only=st.sampled_from([False, False, True]),
    ),
    max_size=12,
    unique_by=lambda drawn: drawn.key,
)
every_trait = st.builds(
    lambda *given: tuple(
        traits(provider, tier, builds_images=builds, takes_images=takes, max_lifetime_ms=life_ms)
        for (provider, tier), builds, takes, life_ms in zip(PLACES, *given, strict=True)
    ),
    *(
        st.lists(st.sampled_from(values), min_size=len(PLACES), max_size=len(PLACES))
        for values in ((False, False, True), (True, True, False), (None, None, 1_800_000))
    ),
)
built = st.lists(
    st.builds(ImageView, st.sampled_from("xy"), st.sampled_from(["", "own:1"]), state=st.sampled_from(ImageState)),
    max_size=4,
)
changes = st.fixed_dictionaries(
    {
        "avoided_offers": st.frozensets(st.sampled_from(KEYS), max_size=6),
        "unreached_offers": st.frozensets(st.sampled_from(KEYS), max_size=6),
        "priority_class": st.sampled_from(PriorityClass),
        "caps": st.sampled_from([Caps(), Caps(max_hourly=Money.usd("3")), Caps(max_cost=Money.usd("4"))]),
        "allowances": st.sampled_from([(), (), (Allowance("x", Money.usd("3"), "a budget", "soon"),)]),
        "resources": st.builds(
            Resources,
            gpu_type=st.sampled_from([None, "A100", "h100"]),
            gpu_memory_bytes_min=st.sampled_from([0, 80]),
            cpus_min=st.sampled_from([1, 8]),
            memory_bytes_min=st.sampled_from([0, 200]),
            base_image=st.sampled_from([None, "own:1"]),
        ),
    }
)
SIZES = (1, 2, 3, 4, 8, 9)


@settings(max_examples=300)
@given(
    several | offer_lists, every_trait, built,
    st.lists(st.tuples(job_views("job_a", JobState.QUEUED), changes), min_size=1, max_size=3), st.sampled_from(
        [SERVERFUL_TIERS, (Tier.SERVERLESS,), (Tier.MARKETPLACE, Tier.OWN)]
    ),
)  # fmt: skip
def test_it_is_what_is_chosen_with_each_number(
    offers: list[Offer], known: Any, images: list[ImageView], jobs: list[tuple[JobView, dict[str, Any]]], tiers: Any
) -> None:
    """Whoever has asked before, and whatever has been taken away meanwhile."""
    market = Market(offers, tiers, known, images)
    for drawn, changed in jobs:
        asking = replace(drawn, **changed)
        assert market.of_sizes(asking, SIZES) == {
            size: found for size in SIZES if (found := _one(market, asking, size))
        }
        market = market.without(market.offers[:1])


def _one(market: Market, asking: JobView, gpus: int) -> SizedOffer | None:
    choice = market.choose(replace(asking, resources=replace(asking.resources, gpus_min=gpus, gpus_max=gpus)))
    return None if choice is None else SizedOffer(choice.offer, choice.can_be_had and not choice.again)


def test_nothing_is_asked_of_no_sizes() -> None:
    assert Market([offer("fn")], (Tier.SERVERLESS,)).of_sizes(job(), ()) == {}
