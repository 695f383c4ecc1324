"""The exam every provider sits: subclass `ProviderConformance` as `Test...` and give it a `harness` fixture.

Call `pytest.register_assert_rewrite("providers.conformance.suite")` before importing it, for readable failures.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from app.core.billing import cost
from app.core.model.ids import make_id
from app.core.model.money import Money
from app.core.model.node import ProviderTraits, Tier
from app.core.model.offer import Offer
from app.errors import (
    AuthFailed,
    NoCapacity,
    OfferGone,
    OutcomeUnknown,
    PriceMoved,
    ProviderError,
    RateLimited,
    Transient,
)
from app.ports.provider import Machine, MachineRequest, MachineStatus, Provider
from providers.conformance.harness import TROUBLE_RETRY_AFTER_MS, Harness, Trouble, Ways

_POLL_S = 0.02
_CLOCK_SLACK_MS = 5_000
UNKNOWN_REF = "no-such-machine"
ALL_TIERS = tuple(Tier)

Value = TypeVar("Value")


class ProviderConformance:
    """Each test opens with what a provider must do. Tests of tiers that the provider does not have are skipped."""

    # -- what is for rent

    async def test_traits_key_each_tier_once(self, harness: Harness) -> None:
        """A provider describes each of its tiers once, under its own name, with usable figures."""
        traits = harness.provider.traits()
        assert {each.tier for each in traits} == harness.tiers
        assert len({(each.provider, each.tier) for each in traits}) == len(traits)
        for each in traits:
            assert each.provider == harness.provider.name
            assert each.billing.unit_ms > 0
            assert each.billing.minimum_ms >= 0
            assert 0 <= each.startup_mean_ms < each.startup_deadline_ms
            assert each.create_grace_ms > 0

    async def test_offers_can_be_compared_and_ordered(self, harness: Harness) -> None:
        """Every offer names its hardware, its tier and the price that will be billed; no two share a key. Only machines
        of one's own may cost nothing."""
        offers = await harness.provider.offers()
        assert offers
        assert len({offer.key for offer in offers}) == len(offers)
        assert {offer.tier for offer in offers} <= harness.tiers
        for offer in offers:
            assert offer.provider == harness.provider.name
            assert offer.gpu_type
            assert offer.gpu_count >= 1
            assert min(offer.gpu_memory_bytes, offer.cpus, offer.memory_bytes) > 0
            assert offer.price_per_hour > Money(0) or (offer.tier is Tier.OWN and offer.price_per_hour == Money(0))
            assert offer.startup_ms >= 0

    # -- a machine's life

    @pytest.mark.parametrize("tier", ALL_TIERS)
    async def test_a_machine_lives_and_is_billed_to_the_cent(self, harness: Harness, tier: Tier) -> None:
        """A created machine is listed under its label, runs, ends when told to, and costs what the rule says."""
        offer = await cheapest(harness, tier)
        request = request_for(offer)
        asked_ms = time.time() * 1000
        created = await harness.provider.create(request)
        assert (created.provider, created.label, created.tier) == (harness.provider.name, request.label, tier)
        assert created.price_per_hour <= request.max_price_per_hour
        assert asked_ms - _CLOCK_SLACK_MS < created.created_ms < time.time() * 1000 + _CLOCK_SLACK_MS
        listed = await harness.provider.list_owned()
        assert [machine.label for machine in listed if machine.ref == created.ref] == [request.label]

        running = await until_status(harness, created.ref, MachineStatus.RUNNING)
        assert running.billed_from_ms is not None
        assert running.billed_to_ms is None
        await harness.provider.terminate(created.ref)
        ended = await until_status(harness, created.ref, MachineStatus.ENDED)
        await assert_billed(harness, ended, traits_of(harness, tier))

    async def test_an_ended_machine_costs_no_more_as_time_goes_by(self, harness: Harness) -> None:
        """The bill of an ended machine is final."""
        machine = await rent(harness)
        await until_status(harness, machine.ref, MachineStatus.RUNNING)
        await harness.provider.terminate(machine.ref)
        ended = await until_status(harness, machine.ref, MachineStatus.ENDED)
        first = await harness.bill(machine.ref)
        await until(harness, lambda: elapsed_since(ended, traits_of(harness, ended.tier)))
        assert await harness.bill(machine.ref) == first
        again = await harness.provider.get(machine.ref)
        assert again is None or again.billed in {None, first.amount}

    async def test_a_machine_that_dies_by_itself_ends_and_stops_costing(self, harness: Harness) -> None:
        """When all that runs on a machine dies, the provider comes to list it so, and its time is billed until then."""
        machine = await rent(harness)
        await until_status(harness, machine.ref, MachineStatus.RUNNING)
        await harness.kill_inside(machine.ref)
        ended = await until_status(harness, machine.ref, harness.ways.dead_is)
        if ended.status is not MachineStatus.ENDED:
            await harness.provider.terminate(machine.ref)
            ended = await until_status(harness, machine.ref, MachineStatus.ENDED)
        await assert_billed(harness, ended, traits_of(harness, ended.tier))

    async def test_a_machine_that_never_comes_up_can_be_ended(self, harness: Harness) -> None:
        """A machine that boots for ever stays booting, ends when told to, and is billed by its tier's rule."""
        for tier in sorted(harness.tiers):
            await harness.arrange(Trouble.CREATE_NEVER_READY)
            machine = await harness.provider.create(request_for(await cheapest(harness, tier)))
            seen = await harness.provider.get(machine.ref)
            assert seen is not None
            assert seen.status is MachineStatus.BOOTING
            await harness.provider.terminate(machine.ref)
            ended = await until_status(harness, machine.ref, MachineStatus.ENDED)
            await assert_billed(harness, ended, traits_of(harness, tier))

    async def test_terminate_is_harmless_when_repeated_or_mistaken(self, harness: Harness) -> None:
        """Ending what is already gone, or what never was, is success."""
        machine = await rent(harness)
        await harness.provider.terminate(machine.ref)
        ended = await until_status(harness, machine.ref, MachineStatus.ENDED)
        await harness.provider.terminate(machine.ref)
        await harness.provider.terminate(UNKNOWN_REF)
        again = await harness.provider.get(machine.ref)
        assert again is None or again.billed_to_ms == ended.billed_to_ms

    async def test_many_callers_may_end_the_same_machine(self, harness: Harness) -> None:
        """Concurrent terminations of one machine all succeed."""
        machine = await rent(harness)
        await asyncio.gather(*(harness.provider.terminate(machine.ref) for _ in range(8)))
        await until_status(harness, machine.ref, MachineStatus.ENDED)

    # -- looking

    async def test_an_unknown_ref_is_nothing(self, harness: Harness) -> None:
        """Asking for a machine that never was gives None, and no log."""
        assert await harness.provider.get(UNKNOWN_REF) is None
        assert await harness.provider.logs(UNKNOWN_REF, 10) == ""

    async def test_find_gives_exactly_the_machines_of_a_label(self, harness: Harness) -> None:
        """A label finds the machines created under it, and no other; an unused one finds none."""
        first, second = await rent(harness), await rent(harness)
        assert first.label is not None
        assert [machine.ref for machine in await harness.provider.find(first.label)] == [first.ref]
        assert second.ref != first.ref
        assert await harness.provider.find(new_label()) == []

    async def test_only_our_machines_are_listed_as_ours(self, harness: Harness) -> None:
        """What somebody else rents in the same account is never taken for ours."""
        foreign = await harness.rent_for_somebody_else()
        ours = await rent(harness)
        listed = {machine.ref for machine in await harness.provider.list_owned()}
        assert ours.ref in listed
        assert foreign not in listed

    async def test_logs_are_cut_to_the_lines_asked_for(self, harness: Harness) -> None:
        """The log of a machine is text with at most as many lines as were asked for; empty where none is shown."""
        machine = await rent(harness)
        await until_status(harness, machine.ref, MachineStatus.RUNNING)
        if not harness.ways.shows_logs:
            assert await harness.provider.logs(machine.ref, 10) == ""
            return
        await until(harness, lambda: has_log(harness.provider, machine.ref))
        assert len((await harness.provider.logs(machine.ref, 1)).splitlines()) == 1
        assert await harness.provider.logs(machine.ref, 0) == ""

    # -- renting what cannot be had

    async def test_an_offer_that_is_gone_is_refused_as_such(self, harness: Harness) -> None:
        """Renting an offer that is not listed, or has just been taken, raises OfferGone and rents nothing."""
        offer = await cheapest(harness)
        unlisted = request_for(replace(offer, offer_id="no-such-offer"))
        await assert_refused(harness, unlisted, OfferGone)
        if Trouble.CREATE_OFFER_GONE not in harness.ways.impossible:
            await harness.arrange(Trouble.CREATE_OFFER_GONE)
            await assert_refused(harness, request_for(offer), OfferGone)

    async def test_a_single_host_is_rented_once(self, harness: Harness) -> None:
        """Of many who rent the same marketplace host at once, one gets it; it is listed again when it is free."""
        offer = await cheapest(harness, Tier.MARKETPLACE)
        requests = [request_for(offer) for _ in range(6)]
        results = await asyncio.gather(
            *(harness.provider.create(request) for request in requests), return_exceptions=True
        )
        rented = [result for result in results if isinstance(result, Machine)]
        assert len(rented) == 1
        assert all(isinstance(result, OfferGone | Machine) for result in results)
        assert offer.key not in {each.key for each in await harness.provider.offers()}
        await harness.provider.terminate(rented[0].ref)
        await until(harness, lambda: is_listed(harness.provider, offer))

    async def test_a_higher_price_than_agreed_is_refused(self, harness: Harness) -> None:
        """Nothing is rented for more than the caller agreed to, by whatever little."""
        offer = await cheapest(harness)
        below = Money(offer.price_per_hour.micros - 1)
        await assert_refused(harness, replace(request_for(offer), max_price_per_hour=below), PriceMoved)
        if Trouble.CREATE_PRICE_MOVED not in harness.ways.impossible:
            await harness.arrange(Trouble.CREATE_PRICE_MOVED)
            await assert_refused(harness, request_for(offer), PriceMoved)

    async def test_no_capacity_is_told_as_such(self, harness: Harness) -> None:
        """When nothing of the kind is left, NoCapacity is raised and nothing is rented."""
        await harness.arrange(Trouble.CREATE_NO_CAPACITY)
        await assert_refused(harness, request_for(await cheapest(harness)), NoCapacity)

    async def test_too_many_requests_say_when_to_come_back(self, harness: Harness) -> None:
        """A rate limit raises RateLimited with the provider's own waiting time, and rents nothing."""
        request = request_for(await cheapest(harness))
        await harness.arrange(Trouble.CREATE_RATE_LIMITED)
        with pytest.raises(RateLimited) as creating:
            await harness.provider.create(request)
        assert await harness.provider.find(request.label) == []
        await harness.arrange(Trouble.LIST_RATE_LIMITED)
        with pytest.raises(RateLimited) as listing:
            await harness.provider.list_owned()
        for raised in (creating, listing):
            assert raised.value.retry_after_ms == TROUBLE_RETRY_AFTER_MS

    # -- when the wire fails

    @pytest.mark.parametrize(
        "trouble", [Trouble.CREATE_REPLY_LOST, Trouble.CREATE_ERROR_AFTER_EFFECT, Trouble.CREATE_TOO_SLOW]
    )
    async def test_a_lost_answer_to_create_is_unknown_and_can_be_looked_up(
        self, harness: Harness, trouble: Trouble
    ) -> None:
        """When create took effect without a clear answer, OutcomeUnknown; its label then finds exactly one machine."""
        request = request_for(await cheapest(harness))
        await harness.arrange(trouble)
        with pytest.raises(OutcomeUnknown):
            await harness.provider.create(request)
        found = await harness.provider.find(request.label)
        assert [machine.label for machine in found] == [request.label]
        await harness.provider.terminate(found[0].ref)
        await until_status(harness, found[0].ref, MachineStatus.ENDED)

    @pytest.mark.parametrize("trouble", [Trouble.CREATE_DROPPED_BEFORE_EFFECT, Trouble.CREATE_ERROR_BEFORE_EFFECT])
    async def test_a_create_that_failed_early_leaves_nothing(self, harness: Harness, trouble: Trouble) -> None:
        """When create failed before its effect, it says so or says it does not know; its label finds nothing."""
        request = request_for(await cheapest(harness))
        await harness.arrange(trouble)
        with pytest.raises((Transient, OutcomeUnknown)):
            await harness.provider.create(request)
        assert await harness.provider.find(request.label) == []

    async def test_a_repeated_create_is_never_the_adapters_idea(self, harness: Harness) -> None:
        """Whatever becomes of a create call, at most one machine comes of it."""
        for trouble in (Trouble.CREATE_ERROR_BEFORE_EFFECT, Trouble.CREATE_REPLY_LOST, Trouble.CREATE_RATE_LIMITED):
            request = request_for(await cheapest(harness))
            await harness.arrange(trouble)
            with pytest.raises(ProviderError):
                await harness.provider.create(request)
            assert len(await harness.provider.find(request.label)) <= 1

    async def test_a_provider_that_cannot_be_reached_has_done_nothing(self, harness: Harness) -> None:
        """With no connection at all, every call raises Transient: create included, for it cannot have happened."""
        request = request_for(await cheapest(harness))
        provider = harness.unreachable()
        try:
            for call in every_call(provider, request, harness.ways):
                with pytest.raises(Transient):
                    await call()
        finally:
            await provider.close()

    async def test_refused_credentials_raise_the_alarm(self, harness: Harness) -> None:
        """Wrong credentials raise AuthFailed from every call, never something that looks like 'nothing there'."""
        request = request_for(await cheapest(harness))
        provider = harness.with_wrong_key()
        try:
            for call in every_call(provider, request, harness.ways):
                with pytest.raises(AuthFailed):
                    await call()
        finally:
            await provider.close()
        assert await harness.provider.find(request.label) == []

    async def test_looking_that_fails_may_be_repeated(self, harness: Harness) -> None:
        """A failed look raises Transient, never 'not there'; the next look works."""
        machine = await rent(harness)
        await harness.arrange(Trouble.GET_DROPPED)
        with pytest.raises(Transient):
            await harness.provider.get(machine.ref)
        assert await harness.provider.get(machine.ref) is not None
        await harness.arrange(Trouble.LIST_ERROR)
        with pytest.raises(Transient):
            await harness.provider.list_owned()
        assert machine.ref in {each.ref for each in await harness.provider.list_owned()}

    @pytest.mark.parametrize("trouble", [Trouble.TERMINATE_REPLY_LOST, Trouble.TERMINATE_ERROR_BEFORE_EFFECT])
    async def test_a_terminate_that_fails_may_be_repeated(self, harness: Harness, trouble: Trouble) -> None:
        """A failed terminate raises Transient; repeating it ends the machine whether or not the first one did."""
        machine = await rent(harness)
        await harness.arrange(trouble)
        with pytest.raises(Transient):
            await harness.provider.terminate(machine.ref)
        await harness.provider.terminate(machine.ref)
        await until_status(harness, machine.ref, MachineStatus.ENDED)

    async def test_closing_twice_is_harmless(self, harness: Harness) -> None:
        """A provider can be closed more than once."""
        await harness.provider.close()
        await harness.provider.close()


# -- pieces of the exam, also for tests of one provider


def new_label() -> str:
    """A node id, as the service would use it for a label."""
    return make_id("node", time.time_ns() // 1_000_000, secrets.randbits(50))


def request_for(offer: Offer) -> MachineRequest:
    """Rent this offer at its listed price, under a fresh label."""
    return MachineRequest(
        label=new_label(),
        offer=offer,
        max_price_per_hour=offer.price_per_hour,
        image="allpass/node:exam",
        bootstrap=(
            ("ALLPASS_URL", "http://127.0.0.1:9"),
            ("ALLPASS_AGENT_SHA256", "0" * 64),
            ("ALLPASS_JOIN_TOKEN", "exam"),
        ),
    )


async def cheapest(harness: Harness, tier: Tier | None = None) -> Offer:
    """The cheapest offer, of this tier if one is named; skips the test where the provider has no such tier."""
    if tier is not None and tier not in harness.tiers:
        pytest.skip(f"{harness.provider.name} has no {tier} tier")
    offers = [offer for offer in await harness.provider.offers() if tier in {None, offer.tier}]
    return min(offers, key=lambda offer: (offer.price_per_hour, offer.key))


async def rent(harness: Harness, tier: Tier | None = None) -> Machine:
    """A machine of the cheapest offer."""
    return await harness.provider.create(request_for(await cheapest(harness, tier)))


def traits_of(harness: Harness, tier: Tier) -> ProviderTraits:
    """The provider's traits of one tier."""
    return next(traits for traits in harness.provider.traits() if traits.tier is tier)


async def until(harness: Harness, probe: Callable[[], Awaitable[Value | None]]) -> Value:
    """Ask again and again until there is an answer; fails after the harness's patience."""
    deadline = time.monotonic() + harness.patience_s
    while True:
        value = await probe()
        if value:
            return value
        assert time.monotonic() < deadline, f"nothing after {harness.patience_s} s"
        await asyncio.sleep(_POLL_S)


async def until_status(harness: Harness, ref: str, status: MachineStatus) -> Machine:
    """The machine, once it has this status."""

    async def probe() -> Machine | None:
        machine = await harness.provider.get(ref)
        assert machine is not None, f"machine {ref} vanished while waiting for {status}"
        on_the_way = {status, MachineStatus.BOOTING, MachineStatus.RUNNING}
        if status is MachineStatus.ENDED:
            on_the_way |= {harness.ways.dead_is, MachineStatus.STOPPED}
        assert machine.status in on_the_way, machine.detail
        return machine if machine.status is status else None

    return await until(harness, probe)


async def assert_billed(harness: Harness, ended: Machine, traits: ProviderTraits) -> None:
    """The company's bill, the machine as listed, and our own arithmetic all say the same."""
    bill = await harness.bill(ended.ref)
    if ended.billed is not None:
        assert bill.amount == ended.billed
    if bill.from_ms is None or ended.billed_from_ms is None:
        assert bill.from_ms == ended.billed_from_ms
        assert bill.amount == bill.beside
        return
    assert bill.to_ms is not None
    assert ended.billed_to_ms is not None
    assert bill.from_ms <= bill.to_ms
    slack_ms = harness.ways.times_slack_ms
    assert abs(bill.from_ms - ended.billed_from_ms) <= slack_ms
    assert abs(bill.to_ms - ended.billed_to_ms) <= slack_ms
    owed = cost(traits.billing, ended.price_per_hour, bill.from_ms, bill.to_ms)
    assert abs((bill.amount - bill.beside - owed).micros) <= (1 if slack_ms else 0)


async def assert_refused(harness: Harness, request: MachineRequest, error: type[ProviderError]) -> None:
    """The create call raises exactly this; under its label nothing lives, and nothing was ever billed."""
    with pytest.raises(error):
        await harness.provider.create(request)
    for machine in await harness.provider.find(request.label):
        assert (machine.status, machine.billed_from_ms) == (MachineStatus.ENDED, None)


async def elapsed_since(ended: Machine, traits: ProviderTraits) -> bool:
    """Whether enough time has passed since the end for a running meter to show it (a unit, at most 1.2 s)."""
    passed_ms = time.time() * 1000 - (ended.billed_to_ms or 0)
    return passed_ms > min(traits.billing.unit_ms, 1_000) + 200


async def is_listed(provider: Provider, offer: Offer) -> bool:
    """Whether the offer can be rented now."""
    return offer.key in {each.key for each in await provider.offers()}


async def has_log(provider: Provider, ref: str) -> bool:
    """Whether the machine has written anything."""
    return await provider.logs(ref, 10) != ""


def every_call(provider: Provider, request: MachineRequest, ways: Ways) -> list[Callable[[], Awaitable[object]]]:
    """All methods of the protocol that reach the other side."""
    calls: list[Callable[[], Awaitable[object]]] = [
        provider.offers,
        lambda: provider.create(request),
        lambda: provider.get(UNKNOWN_REF),
        lambda: provider.find(request.label),
        provider.list_owned,
        lambda: provider.terminate(UNKNOWN_REF),
    ]
    return [*calls, lambda: provider.logs(UNKNOWN_REF, 10)] if ways.shows_logs else calls
