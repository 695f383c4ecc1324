"""Offers of a provider that builds a job's image first, and offers that failed in passing: no policy takes anything
larger or other in their place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.board import Board
from app.core.market import Market, is_like
from app.core.model.image import ImageState, ImageView, WantedImage
from app.core.model.job import JobState, Resources
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.core.model.plan import Plan, Provision, Start
from app.core.model.snapshot import JobView
from app.core.policies import policy_named
from app.core.policy import PolicyState
from tests.core.samples import CONFIG, GIB, NOW_MS, job, job_views, offer, offer_lists, snapshot

OWN = "lab/train:7"
BUILT = ImageView("modal", "", "allpass/node:1", ImageState.READY)
SERVES, RENTS = Tier.SERVERLESS, Tier.MARKETPLACE


def b200(count: int, provider: str = "modal", tier: Tier = SERVES, dollars: str | None = None) -> Offer:
    made = offer(f"B200:{count}", tier, dollars or str(6 * count), gpu_type="B200", gpu_count=count)
    return replace(made, provider=provider)


def trait(provider: str, tier: Tier, *, builds: bool) -> ProviderTraits:
    rule = BillingRule(1_000, BillingStart.READY)
    serverless = tier is SERVES
    return ProviderTraits(
        provider, tier, rule, 1_000, 60_000, 1_000, dies_with_run=serverless, preemptible=True, builds_images=builds
    )


TRAITS = (trait("modal", SERVES, builds=True), trait("vast", RENTS, builds=False))
CLIMB = (b200(1), b200(2), b200(4))


def decide(policy: str, asking: JobView, offers: Any, images: Any = (), now_ms: int = NOW_MS) -> Plan:
    seen = replace(snapshot(jobs=[asking], offers=offers), traits=TRAITS, images=tuple(images), now_ms=now_ms)
    plan, _ = policy_named(policy).decide(Board.of(seen), PolicyState(), CONFIG)
    return plan


def taken(plan: Plan) -> list[Offer]:
    return [action.offer for action in plan.actions if isinstance(action, Start | Provision)]


def why(plan: Plan) -> str:
    (told,) = plan.waiting
    return told.reason


@pytest.mark.parametrize("policy", ["allpass", "fixed-threshold", "modal-only"])
def test_a_job_for_one_gpu_never_climbs_to_more_because_of_a_failure_in_passing(policy: str) -> None:
    """Each offer in turn could not be asked for: it is the first that is tried again, not the next dearer one."""
    for unreached in (CLIMB[:1], CLIMB[:2], CLIMB):
        asking = job(unreached_offers=frozenset(one.key for one in unreached))
        assert taken(decide(policy, asking, CLIMB, [BUILT])) == [CLIMB[0]]


@pytest.mark.parametrize("policy", ["allpass", "fixed-threshold"])
def test_its_like_elsewhere_is_taken_meanwhile(policy: str) -> None:
    """One B200 of another company stands in for one B200; neither two of them nor another card does."""
    asking = job(unreached_offers=frozenset({CLIMB[0].key}))
    like = b200(1, "vast", RENTS, "7")
    assert taken(decide(policy, asking, (*CLIMB, like), [BUILT])) == [like]
    other = replace(offer("h100", RENTS, "1", gpu_type="H100"), provider="vast")
    for instead in (b200(2, "vast", RENTS, "2"), other):
        assert CLIMB[0] in taken(decide(policy, asking, (*CLIMB, instead), [BUILT]))


unreached_of = st.frozensets(st.sampled_from(["x/1", "x/2", "y/1", "y/2"]), max_size=4)


@settings(max_examples=200)
@given(
    offers=offer_lists,
    asking=job_views("job_a", JobState.QUEUED),
    unreached=unreached_of,
    ready=st.booleans(),
    tiers=st.sampled_from([(SERVES,), (RENTS, Tier.CONVENTIONAL)]),
)
def test_what_fails_in_passing_is_replaced_by_its_like_or_tried_again(
    offers: list[Offer], asking: JobView, unreached: frozenset[str], ready: bool, tiers: tuple[Tier, ...]
) -> None:
    """Whatever could not be asked for and whatever is being built: the job gets GPUs of the type that it would have
    got, and no more of them."""
    traits = tuple(trait(provider, tier, builds=provider == "x") for provider in "xy" for tier in Tier)
    state = ImageState.READY if ready else ImageState.BUILDING
    images = [ImageView("x", asking.resources.base_image or "", state=state)]
    calm = Market(offers, tiers, tuple(replace(one, builds_images=False) for one in traits)).choose(
        replace(asking, unreached_offers=frozenset())
    )
    choice = Market(offers, tiers, traits, images).choose(replace(asking, unreached_offers=unreached))
    assert (choice is None) == (calm is None)
    if choice is not None and calm is not None:
        assert choice.offer == calm.offer or is_like(choice.offer, calm.offer)
        assert choice.offer == calm.offer or (choice.can_be_had and not choice.unreached)
        assert choice.can_be_had is (ready or choice.offer.provider != "x")


@pytest.mark.parametrize("policy", ["allpass", "fixed-threshold", "modal-only"])
@pytest.mark.parametrize("image", [None, OWN])
def test_a_job_waits_for_its_image_and_has_it_built(policy: str, image: str | None) -> None:
    """Nobody builds it yet: the plan says that it is wanted, and rents nothing. Once it is built, the job starts."""
    asking = job(resources=Resources(base_image=image))
    plan = decide(policy, asking, CLIMB)
    assert taken(plan) == []
    assert plan.images == (WantedImage("modal", image or ""),)
    assert f"waits until modal has built its image {image or 'the usual image'}" in why(plan)
    ready = ImageView("modal", image or "", "n", ImageState.READY)
    assert taken(decide(policy, asking, CLIMB, [ready])) == [CLIMB[0]]


def test_the_wait_says_since_when_and_how_long() -> None:
    """An estimate while there is one; after that, that it takes longer than usual. It is not asked for again."""
    view = ImageView("modal", OWN, OWN, ImageState.BUILDING, NOW_MS - 30_000, NOW_MS + 90_000)
    asking = job(resources=Resources(base_image=OWN))
    plan = decide("allpass", asking, CLIMB, [view])
    assert plan.images == ()
    assert "(for 30 s, about 90 s to go)" in why(plan)
    late = decide("allpass", asking, CLIMB, [view], now_ms=NOW_MS + 91_000)
    assert "(for 121 s, longer than builds have usually taken)" in why(late)


@pytest.mark.parametrize("policy", ["allpass", "fixed-threshold", "modal-only"])
def test_a_job_whose_image_cannot_be_built_is_held_and_costs_nothing(policy: str) -> None:
    """With the reason, when it is tried again, and the command that does so at once; a machine elsewhere would be paid
    for to find out the same. Others, with images that are built, start."""
    cheap = b200(1, "vast", RENTS, "1")
    failed = ImageView("modal", OWN, OWN, ImageState.FAILED, NOW_MS, why="no such tag", again_ms=NOW_MS + 300_000)
    asking = job(resources=Resources(base_image=OWN))
    plan = decide(policy, asking, (*CLIMB, cheap), [failed, BUILT])
    assert taken(plan) == []
    assert "held: modal could not build its image lab/train:7: no such tag" in why(plan)
    assert "tried again in 300 s (at once: allpass providers prepare lab/train:7)" in why(plan)
    assert "only when somebody asks" in why(decide(policy, asking, CLIMB, [replace(failed, again_ms=None)]))
    assert taken(decide(policy, job(), CLIMB, [failed, BUILT])) == [CLIMB[0]]


@pytest.mark.parametrize(
    ("dollars", "startup_ms", "gpus", "goes"),
    [("5", 30_000, 1, True), ("7", 30_000, 1, False), ("5", 300_000, 1, False), ("5", 30_000, 2, False)],
)
def test_a_node_is_rented_meanwhile_where_it_is_there_sooner_and_costs_no_more(
    dollars: str, startup_ms: int, gpus: int, goes: bool
) -> None:
    """And has no more GPUs; else the job waits for its image."""
    node = replace(b200(gpus, "vast", RENTS, dollars), startup_ms=startup_ms)
    view = ImageView("modal", "", "n", ImageState.BUILDING, NOW_MS, NOW_MS + 120_000)
    plan = decide("allpass", job(total_run_ms=60_000), (*CLIMB, node), [view])
    assert taken(plan) == ([node] if goes else [])


def test_a_market_without_builders_is_as_it_was() -> None:
    """Providers that run any image at once are asked at once."""
    market = Market(CLIMB, (SERVES,), (replace(TRAITS[0], builds_images=False),))
    choice = market.choose(job())
    assert choice is not None
    assert (choice.offer, choice.can_be_had, choice.rivals) == (CLIMB[0], True, 3)


def test_the_like_of_an_offer() -> None:
    """By type and number alone: spelling, price and memory do not matter."""
    assert is_like(replace(CLIMB[0], gpu_type="b-200", gpu_memory_bytes=GIB, price_per_hour=Money(9)), CLIMB[1])
    assert not is_like(CLIMB[1], CLIMB[0])
    assert not is_like(replace(CLIMB[0], gpu_type="H100"), CLIMB[0])
