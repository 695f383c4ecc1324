"""Bids at Vast.ai: listed beside hosts on demand, never above them, and noticed when they are lost."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.errors import AuthFailed, OfferGone, PriceMoved, ProviderError, RateLimited, Transient
from app.ports.pace import ProcessPace
from app.ports.provider import Machine, MachineStatus
from providers.conformance.suite import request_for
from providers.vast.adapter import VastProvider
from providers.vast.bids import PricedOffer, ask_of, below_on_demand, is_bid, offer_id_of
from providers.vast.contracts import SeenContracts
from tests.conftest import ManualClock
from tests.providers.cloud_process import eventually, ok
from tests.providers.vast.clocks import StillClock
from tests.providers.vast.test_contracts import OUTBID, ROW
from tests.providers.vast_emulator import EmulatedVast, NoPace


@pytest.fixture
async def bidder(vast: EmulatedVast) -> AsyncIterator[VastProvider]:
    adapter = vast.provider(bids=True)
    yield adapter
    await adapter.close()


def kind(one: Offer) -> tuple[str, int]:
    return one.gpu_type, one.gpu_memory_bytes


def gpu_price(one: Offer) -> Fraction:
    return Fraction(one.price_per_hour.micros, one.gpu_count)


# What is listed


async def test_each_host_is_listed_in_both_ways(vast: EmulatedVast, bidder: VastProvider) -> None:
    """Every host that is there on demand, and the same by a bid, where that is below the best price of its kind; each
    says which it is, and none is listed by a bid where bids are off."""
    offers = await bidder.offers()
    bids, on_demand = ([one for one in offers if one.interruptible is way] for way in (True, False))
    without = vast.provider()
    assert {one.offer_id for one in await without.offers()} == {one.offer_id for one in on_demand}
    await without.close()
    assert bids
    assert {ask_of(one.offer_id) for one in bids} <= {one.offer_id for one in on_demand}
    for one in bids:
        rivals = [other for other in on_demand if kind(other) == kind(one)]
        assert gpu_price(one) < min(map(gpu_price, rivals))
        assert is_bid(one.offer_id)
        assert one.spot_only
    assert len({one.key for one in offers}) == len(offers)


async def test_a_bid_that_is_not_below_on_demand_is_no_offer(vast: EmulatedVast) -> None:
    """The lowest bid is half the price there: two and a half times that is more than anybody needs to pay."""
    dear = vast.provider(bids=True, bid_percent=250)
    offers = await dear.offers()
    assert offers
    assert not any(one.interruptible for one in offers)
    await dear.close()


priced = st.builds(
    lambda gpu, count, micros, way: PricedOffer(
        Offer("vast", f"{micros}", Tier.MARKETPLACE, gpu, count, 2**34, 1, 1, Money(micros), 1, spot_only=way),
        "1",
        None,
    ),
    st.sampled_from(["A100", "T4"]),
    st.sampled_from([1, 2, 8]),
    st.integers(1, 10**7),
    st.booleans(),
)


@given(st.lists(priced, max_size=12))
def test_no_bid_is_dearer_per_gpu_than_its_kind_on_demand(market: list[PricedOffer]) -> None:
    bids = [one for one in market if one.offer.spot_only]
    on_demand = [one for one in market if not one.offer.spot_only]
    kept = below_on_demand(bids, on_demand)
    for one in bids:
        rivals = [gpu_price(other.offer) for other in on_demand if kind(other.offer) == kind(one.offer)]
        assert (one in kept) == (bool(rivals) and gpu_price(one.offer) < min(rivals))


@pytest.mark.parametrize("ask", ["1", "7010003"])
def test_one_host_has_a_name_for_each_way(ask: str) -> None:
    both = offer_id_of(ask, bids=False), offer_id_of(ask, bids=True)
    assert [ask_of(one) for one in both] == [ask, ask]
    assert [is_bid(one) for one in both] == [False, True]


# What a listing asks


async def test_a_listing_is_two_searches_and_never_more_than_three(vast: EmulatedVast) -> None:
    """Ten in a minute are allowed, for all that this account asks; each takes its turn as any other."""
    pace = NoPace()
    bidder = vast.provider(bids=True, pace=pace, gpu_types=("A100", "T4", "H100", "L4"))
    await bidder.offers()
    assert [lane for lane, _ in pace.turns] == ["search", "search"]
    assert all(every_ms >= 6_000 for _, every_ms in pace.turns)
    narrow = vast.provider(bids=True, pace=pace, gpu_types=("A100", "T4", "H100", "L4"), search_limit=2)
    for _ in range(4):
        before = len(pace.turns)
        await narrow.offers()
        assert len(pace.turns) - before <= 3
    await bidder.close()
    await narrow.close()


async def test_where_two_searches_find_no_time_they_take_turns(vast: EmulatedVast) -> None:
    """A process with little patience lists every seven seconds, and may search once in each: both ways are listed from
    the second listing on, and each search is as fresh as the other."""
    clock = ManualClock(time.time_ns() // 1_000_000)
    bidder = vast.provider(bids=True, clock=clock, pace=ProcessPace(clock, patience_ms=2_000))
    asked: list[str] = []
    search = bidder._wire.search

    async def noted(body: dict[str, Any]) -> list[Any]:
        rows = await search(body)
        asked.append(body["type"])
        return rows

    bidder._wire.search = noted  # type: ignore[method-assign]
    listed = []
    for _ in range(6):
        listed.append({one.interruptible for one in await bidder.offers()})
        clock.advance(s=7)
    assert listed == [{False}] + [{False, True}] * 5
    assert asked == ["on-demand", "bid"] * 3
    await bidder.close()


@pytest.mark.parametrize("error", [Transient("slow"), RateLimited("used up", retry_after_ms=9)])
async def test_what_is_on_demand_is_listed_though_bids_cannot_be_looked_for(
    bidder: VastProvider, monkeypatch: pytest.MonkeyPatch, error: ProviderError
) -> None:
    """Of bids what was seen last stands for a while; where nothing was, there are none."""
    search = bidder._wire.search

    async def fails(body: dict[str, Any]) -> list[Any]:
        if body["type"] == "bid":
            raise error
        return await search(body)

    monkeypatch.setattr(bidder._wire, "search", fails)
    first = await bidder.offers()
    assert first
    assert not any(one.interruptible for one in first)
    monkeypatch.undo()
    second = await bidder.offers()
    monkeypatch.setattr(bidder._wire, "search", fails)
    assert {one.key for one in await bidder.offers()} == {one.key for one in second} > {one.key for one in first}


async def test_a_refused_key_is_told_whichever_search_finds_out(
    bidder: VastProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = bidder._wire.search

    async def refused(body: dict[str, Any]) -> list[Any]:
        if body["type"] == "bid":
            raise AuthFailed("no")
        return await search(body)

    monkeypatch.setattr(bidder._wire, "search", refused)
    with pytest.raises(AuthFailed):
        await bidder.offers()


# What is rented


async def rent(provider: VastProvider, *, bid: bool = True) -> Machine:
    return await provider.create(request_for(next(one for one in await provider.offers() if one.interruptible is bid)))


async def test_what_is_bid_is_what_was_agreed(vast: EmulatedVast, bidder: VastProvider) -> None:
    """And a host that is rented on demand is not bid for, though bids are on."""
    bid = await rent(bidder)
    facts = vast.machine(bid.ref)["facts"]
    agreed = bidder._found[offer_id_of(facts["offer_id"], bids=True)]
    on_demand = await rent(bidder, bid=False)
    assert facts["bid_micros"] == int((agreed.bid or Decimal(0)) * 1_000_000)
    assert bid.price_per_hour == agreed.offer.price_per_hour
    assert vast.machine(on_demand.ref)["facts"]["bid_micros"] is None


async def test_a_bid_that_has_become_dearer_is_not_made(vast: EmulatedVast) -> None:
    """Another process listed it, when the host asked for less; and where bids are off by now, none is made."""
    seen, other, off = vast.provider(bids=True), vast.provider(bids=True), vast.provider()
    bid = next(one for one in await seen.offers() if one.interruptible and one.gpu_type == "T4")
    ok(vast.admin.post("/admin/market", json={"price_micros": {"Tesla T4": 9_000_000}}))
    with pytest.raises(PriceMoved):
        await other.create(request_for(bid))
    ok(vast.admin.delete("/admin/market"))
    with pytest.raises(OfferGone, match="there is no offer"):
        await off.create(request_for(bid))
    for name in ("1~bid", "x~bid"):
        with pytest.raises(OfferGone):
            await other.create(request_for(replace(bid, offer_id=name, host="1")))
    assert vast.live() == []
    for one in (seen, other, off):
        await one.close()


# What is lost


async def test_losing_a_bid_is_told_and_so_is_that_it_runs_again(vast: EmulatedVast, bidder: VastProvider) -> None:
    """What ran before the host went to somebody else does not run any more when the bid wins again."""
    machine = await rent(bidder)
    eventually(lambda: vast.machine(machine.ref)["state"] == "running")
    running = await bidder.get(machine.ref)
    assert running is not None
    assert (running.status, running.interrupted) == (MachineStatus.RUNNING, False)
    vast.act(machine.ref, "outbid")
    lost = await bidder.get(machine.ref)
    assert lost is not None
    assert (lost.status, lost.interrupted) == (MachineStatus.STOPPED, True)
    vast.act(machine.ref, "win")
    eventually(lambda: vast.machine(machine.ref)["state"] == "running")
    again = await bidder.get(machine.ref)
    assert again is not None
    assert (again.status, again.interrupted) == (MachineStatus.RUNNING, True)


@pytest.mark.parametrize(
    ("told", "interrupted"),
    [
        ({"is_bid": True, "actual_status": "stopped", **OUTBID}, True),
        ({"is_bid": False, "actual_status": "stopped", **OUTBID}, False),  # credit is used up, or the lease is over
        ({"actual_status": "stopped", **OUTBID}, False),
        ({"is_bid": "yes", "actual_status": "stopped", **OUTBID}, False),
        ({"is_bid": True, "actual_status": "exited"}, False),  # its own process has ended
        ({"is_bid": True, "actual_status": "offline"}, False),
        ({"is_bid": True, "actual_status": "running"}, False),
    ],
)
def test_only_a_bid_that_its_company_stopped_was_interrupted(told: dict[str, Any], interrupted: bool) -> None:
    """A row that does not say whether it is a bid is one if it was when it was last told."""
    contracts = SeenContracts(StillClock())
    assert contracts.see(ROW | told).machine.interrupted is interrupted
    if interrupted:
        silent = {name: value for name, value in told.items() if name != "is_bid"}
        assert contracts.see(ROW | silent).machine.interrupted
