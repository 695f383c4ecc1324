"""Hosts one by one, and times in which there are none."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.simulator.worlds.known import FRIENDLY, HARSH, MEASURED
from app.simulator.worlds.supply import Droughts, Supply
from app.simulator.worlds.world import World
from tests.simulator.scenarios import market

HOUR_MS = 3_600_000
PLAIN = market().offers(0, (1, 8, 16), {})


def world(**figures: float) -> World:
    """Friendly, but for the marketplace."""
    return FRIENDLY.having({f"marketplace.{name}": value for name, value in figures.items()})


def offered(supply: Supply, gpus: int = 1, now_ms: int = 0) -> list[Offer]:
    offers = supply.offers(PLAIN, now_ms)
    return [one for one in offers if one.tier == Tier.MARKETPLACE and one.gpu_count == gpus]


def dollars(offers: list[Offer]) -> list[float]:
    return [one.price_per_hour.micros / 1e6 for one in offers]


def test_the_friendly_world_offers_what_there_was() -> None:
    assert Supply(FRIENDLY, 0).offers(PLAIN, 0) == PLAIN
    assert Supply(FRIENDLY, 0).next_turn_ms(0) is None


def test_each_further_host_costs_more_until_the_most() -> None:
    """Those that are taken are not offered, and what is given back is the cheapest again."""
    supply = Supply(world(hosts=6, dearer_share=0.5, dearer_most=2.0), 0)
    assert dollars(offered(supply)) == [0.74, 1.11, 1.48]
    for node in ("a", "b", "c"):
        supply.take(node, offered(supply)[0])
    assert dollars(offered(supply)) == [1.48, 1.48, 1.48]
    supply.give_back("a")
    assert dollars(offered(supply)) == [0.74, 1.48, 1.48]
    supply.give_back("never rented")
    assert len(offered(supply)) == 3


def test_the_last_host_is_taken_once() -> None:
    supply = Supply(world(hosts=1), 0)
    last = offered(supply)[0]
    assert supply.has(last, 0)
    supply.take("a", last)
    assert not supply.has(last, 0)
    assert offered(supply) == []
    supply.give_back("a")
    assert supply.has(last, 0)


def test_who_needs_more_gpus_than_a_host_has_takes_several() -> None:
    """Sixteen GPUs are two hosts; with three of them there is no second pair."""
    supply = Supply(world(hosts=3, dearer_share=0.1, dearer_most=2.0), 0)
    pair = offered(supply, 16)
    assert [one.offer_id.rpartition("#")[2] for one in pair] == ["0"]
    supply.take("pair", pair[0])
    assert offered(supply, 16) == []
    assert dollars(offered(supply)) == [0.888]
    assert not supply.has(pair[0], 0)


def test_the_disk_is_in_the_price_and_the_traffic_beside_it() -> None:
    """For each host that stands for the machine."""
    supply = Supply(world(storage_usd=0.01, traffic_usd=0.005), 0)
    assert dollars(offered(supply)) == [0.75]
    assert dollars(offered(supply, 16)) == [0.74 * 16 + 0.02]
    assert {one.traffic_micros_per_gb for one in offered(supply)} == {5_000}


def test_in_a_drought_nothing_is_offered_and_its_end_is_known() -> None:
    supply = Supply(world(drought_share=0.5, drought_s=3_600), 3)
    turns = [0]
    while len(turns) < 40:
        turn_ms = supply.next_turn_ms(turns[-1])
        assert turn_ms is not None
        assert turn_ms > turns[-1]
        before, after = (bool(offered(supply, now_ms=at_ms)) for at_ms in (turn_ms - 1, turn_ms))
        assert before != after
        assert supply.is_dry(turn_ms) == (not after)
        turns.append(turn_ms)
    others = [one for one in supply.offers(PLAIN, turns[-1]) if one.tier != Tier.MARKETPLACE]
    assert others == [one for one in PLAIN if one.tier != Tier.MARKETPLACE]


@pytest.mark.parametrize(("share", "hours"), [(0.02, 1.7), (0.25, 2.0), (0.9, 8.0)])
def test_droughts_take_their_share_of_the_time(share: float, hours: float) -> None:
    """And last as long as is said, over four thousand of them."""
    droughts = Droughts(share, hours * HOUR_MS, random.Random(1))
    at_ms, dry_ms, many = 0, 0, 0
    while many < 4_000:
        turn_ms = droughts.next_turn_ms(at_ms)
        assert turn_ms is not None
        if droughts.is_dry(at_ms):
            dry_ms += turn_ms - at_ms
            many += 1
        at_ms = turn_ms
    assert dry_ms / at_ms == pytest.approx(share, rel=0.07)
    assert dry_ms / many / HOUR_MS == pytest.approx(hours, rel=0.05)


@given(st.integers(0, 50), st.lists(st.integers(0, 500 * HOUR_MS), max_size=8))
def test_it_does_not_matter_who_asks_when(seed: int, asked: list[int]) -> None:
    """Whoever looks far ahead, or looks back, sees the same droughts: every policy has the same market."""
    one, other = Supply(HARSH, seed), Supply(HARSH, seed)
    for at_ms in asked:
        one.next_turn_ms(at_ms)
    for at_ms in (0, *sorted(asked)):
        assert one.is_dry(at_ms) == other.is_dry(at_ms)
        assert one.next_turn_ms(at_ms) == other.next_turn_ms(at_ms)


@given(st.lists(st.tuples(st.sampled_from(("take", "back")), st.integers(0, 9)), max_size=60))
def test_no_host_is_held_twice_and_none_is_lost(steps: list[tuple[str, int]]) -> None:
    """However nodes come and go: offered and held hosts are all there are, in the order of their prices."""
    figures = MEASURED.having({"marketplace.hosts": 9, "marketplace.drought_share": 0.0})
    supply, held = Supply(figures, 0), {}
    for what, number in steps:
        here = offered(supply)
        if what == "take" and here and number not in held:
            held[number] = here[min(number, len(here) - 1)].offer_id
            supply.take(str(number), next(one for one in here if one.offer_id == held[number]))
        elif what == "back":
            supply.give_back(str(number))
            held.pop(number, None)
        shown = [one.offer_id for one in offered(supply)]
        assert len(set(held.values())) == len(held)
        assert not set(shown) & set(held.values())
        assert len(shown) == min(3, 9 - len(held))
        assert dollars(offered(supply)) == sorted(dollars(offered(supply)))
