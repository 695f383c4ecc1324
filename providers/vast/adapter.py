"""Vast.ai as a provider: one tier, the marketplace."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from typing import Any

import httpx

from app.core.model.ids import is_id
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.errors import (
    AuthFailed,
    InvalidRequest,
    OfferGone,
    OutcomeUnknown,
    PriceMoved,
    ProviderError,
    RateLimited,
    Transient,
)
from app.ports.clock import Clock
from app.ports.failures import HostFailures
from app.ports.pace import Pace
from app.ports.provider import Machine, MachineRequest, MachineStatus
from providers.bootstrap import bootstrap_line
from providers.vast.barred import Attempts, Blacklist
from providers.vast.bids import PricedOffer, ask_of, below_on_demand, is_bid
from providers.vast.charges import charged
from providers.vast.contracts import SeenContracts, Sighting
from providers.vast.ending import LastLooks
from providers.vast.kinds import SEARCHES_AT_ONCE, Kinds
from providers.vast.numbers import Row, text
from providers.vast.options import VastOptions
from providers.vast.order import Bootstrap, create_body
from providers.vast.refusals import body_of, summary
from providers.vast.search import NAME, read_offers, search_body
from providers.vast.wire import CREATE, VastWire

_HAD_ITS_TIME = 0.9  # of the start-up deadline
_BILLING = BillingRule(1_000, BillingStart.READY)
_log = logging.getLogger(__name__)


class VastProvider:
    """Implements `app.ports.provider.Provider`. No call is ever made twice. `failures`: hosts that failed us."""

    name = NAME

    def __init__(
        self,
        options: VastOptions,
        *,
        clock: Clock,
        pace: Pace,
        failures: HostFailures,
        bootstrap: Bootstrap = bootstrap_line,
    ) -> None:
        self._options = options
        self._clock = clock
        self._bootstrap = bootstrap
        self._wire = VastWire(options, clock=clock, pace=pace)
        self._contracts = SeenContracts(clock)
        self._last_looks = LastLooks(self._wire, timeout_s=options.timeout_s / 2)
        self._attempts = Attempts(clock, options.startup_deadline_ms)
        self._kinds = Kinds(options.gpu_types, options.search_limit)
        self._bid_kinds = Kinds(options.gpu_types, options.search_limit)
        self._bids_are_due = False  # they had no turn in the last listing
        self._found: dict[str, PricedOffer] = {}
        self._unwanted: set[str] = set()  # contracts that a create has left, and that could not be destroyed at once
        self._blacklist = Blacklist(clock, failures)

    def traits(self) -> tuple[ProviderTraits, ...]:
        """One tier: on-demand hosts, and those that are bid for when the options say so."""
        options = self._options
        return (
            ProviderTraits(
                provider=NAME,
                tier=Tier.MARKETPLACE,
                billing=_BILLING,
                startup_mean_ms=options.startup_ms,
                startup_deadline_ms=options.startup_deadline_ms,
                create_grace_ms=options.create_grace_ms,
                dies_with_run=False,
                preemptible=options.bids,
            ),
        )

    async def offers(self) -> list[Offer]:
        """What can be rented under the options, without hosts that are barred or being tried right now."""
        rows, bid_rows = await self._rows(self._clock.now_ms())
        found = read_offers(rows, self._options)
        found += below_on_demand(read_offers(bid_rows, self._options, bids=True), found)
        self._found = {each.offer.offer_id: each for each in found}
        barred = await self._blacklist.hosts()
        offers = [each.offer for each in self._found.values() if each.machine not in barred]
        return [offer for offer in offers if not self._attempts.holds(offer.offer_id, offer.host)]

    async def _search(self, kinds: tuple[str, ...]) -> list[Any]:
        return await self._wire.search(search_body(replace(self._options, gpu_types=kinds)))

    async def _rows(self, now_ms: int) -> tuple[list[Any], list[Any]]:
        """What is on demand, and what can be bid for. Searches have to keep their distance: where there was no time for
        the second one in a listing, it comes first in the next, and the other answer stands meanwhile."""
        if not self._options.bids:
            return await self._kinds.search(self._search, now_ms=now_ms), []
        if not self._bids_are_due:
            rows = await self._kinds.search(self._search, now_ms=now_ms, most=SEARCHES_AT_ONCE - 1)
            return rows, await self._bid_rows(now_ms)
        bid_rows = await self._bid_rows(now_ms)
        self._bids_are_due = False
        try:
            return await self._kinds.search(self._search, now_ms=now_ms, most=SEARCHES_AT_ONCE - 1), bid_rows
        except RateLimited:
            rows = self._kinds.believed(now_ms)
            if not rows:
                raise
            return rows, bid_rows

    async def _bid_rows(self, now_ms: int) -> list[Any]:
        """One search more for each listing: it counts at Vast.ai as any other. Where it fails in passing, what can be
        rented on demand is told all the same, and of bids what was last seen."""

        async def search(kinds: tuple[str, ...]) -> list[Any]:
            return await self._wire.search(search_body(replace(self._options, gpu_types=kinds), bids=True))

        try:
            return await self._bid_kinds.search(search, now_ms=now_ms, most=1)
        except (RateLimited, Transient) as error:
            self._bids_are_due = isinstance(error, RateLimited)
            _log.warning("vast: bids could not be looked for: %s", error)
            return self._bid_kinds.believed(now_ms)

    async def create(self, request: MachineRequest) -> Machine:
        """Rent `request.offer`, and check what it costs. OutcomeUnknown as soon as a contract may have been left."""
        offer = request.offer
        if offer.provider != NAME:
            raise InvalidRequest(f"offer {offer.key} is not one of provider {NAME}")
        if offer.host in await self._blacklist.hosts():
            raise OfferGone(f"vast: host {offer.host} has failed lately")
        if not self._attempts.begin(request.label, offer.offer_id, offer.host):
            raise OfferGone(f"vast: host {offer.host} is being tried already")
        try:
            body = create_body(request, self._bootstrap(request), self._options, await self._bid(request))
            return await self._rent(request, body)
        except OutcomeUnknown:
            raise  # the attempt stays open, as after a cancellation: what it left may still come up on this host
        except ProviderError:
            self._attempts.end(request.label)
            raise

    async def get(self, ref: str) -> Machine | None:
        """One that we have destroyed is told as ended for as long as this process remembers it."""
        sighting = self._contracts.get(ref)
        if sighting is None and self._last_looks.is_gone(ref):
            return None
        row = await self._wire.show(ref)
        if row is not None:
            return await self._see(row)
        if sighting is None or sighting.ended_ms is None:
            return None
        if sighting.billed is None:
            sighting.billed = await charged(self._wire, sighting, now_ms=self._clock.now_ms())
        return _with_bill(sighting)

    async def find(self, label: str) -> list[Machine]:
        """The contracts with this label; those that were destroyed are not told any more.

        What a create has left against our will is never found: it is destroyed first.
        """
        rows = await self._wire.instances({"label": {"eq": label}})
        found = [await self._see(row) for row in rows if text(row, "label") == label]
        for ref in self._unwanted & {machine.ref for machine in found}:
            await self.terminate(ref)
        return [machine for machine in found if not self._is_over(machine.ref)]

    async def list_owned(self) -> list[Machine]:
        """All contracts whose label is a node id, as it is or as it was when they were seen before."""
        rows = await self._wire.instances({})
        return [await self._see(row) for row in rows if self._is_ours(row)]

    async def terminate(self, ref: str) -> None:
        """Destroy the contract with its disk. One that is gone or unknown is a success."""
        if self._contracts.get(ref) is None:
            row = await self._last_looks.take(ref)
            if row is not None:
                with suppress(ProviderError):  # one that cannot be read is destroyed all the same
                    await self._see(row)
        was_there = await self._wire.destroy(ref)
        self._unwanted.discard(ref)
        self._last_looks.destroyed(ref, was_there=was_there)
        known = self._contracts.get(ref)
        came_to_nothing = known is not None and self._never_came_up(known)
        sighting = self._contracts.end(ref)
        if sighting is None:
            return
        self._attempts.end(sighting.machine.label)
        if came_to_nothing:
            await self._blacklist.blame(sighting.host, ref)

    async def logs(self, ref: str, tail_lines: int) -> str:
        """The last lines that the container wrote; empty for a contract that is not known."""
        if tail_lines <= 0:
            return ""
        written = await self._wire.logs(ref, tail_lines)
        return "".join(written.splitlines(keepends=True)[-tail_lines:])

    async def credit_micros(self) -> int | None:
        """What is left on the account; None where our key may not know, or the answer does not say."""
        try:
            told = (await self._wire.account()).get("credit")
        except (AuthFailed, InvalidRequest):
            return None
        is_number = isinstance(told, int | float) and not isinstance(told, bool) and math.isfinite(told)
        return round(Decimal(str(told)) * 1_000_000) if is_number else None

    async def close(self) -> None:
        """Close the connections; harmless when repeated."""
        await self._wire.close()

    # -- renting

    async def _bid(self, request: MachineRequest) -> Decimal | None:
        """What to bid, in dollars an hour; None on demand. Raises PriceMoved when the last listing asked for more."""
        offer_id = request.offer.offer_id
        found = self._found.get(offer_id)
        if is_bid(offer_id) and found is None:  # another process has seen it
            found = await self._looked_up(offer_id)
        if found is None:
            return None
        _check_price(request, found.offer.price_per_hour, f"offer {offer_id}")
        return found.bid

    async def _looked_up(self, offer_id: str) -> PricedOffer:
        """What to bid now. Whoever has listed it has seen that it costs less than on demand; no more than was agreed
        then is bid."""
        ask = ask_of(offer_id)
        if not self._options.bids or not ask.isdecimal():
            raise OfferGone(f"vast: there is no offer {offer_id}")
        rows = await self._wire.search(search_body(self._options, ask, bids=True))
        found = next(iter(read_offers(rows, self._options, bids=True)), None)
        if found is None:
            raise OfferGone(f"vast: offer {offer_id} is not listed any more")
        return found

    async def _rent(self, request: MachineRequest, body: dict[str, object]) -> Machine:
        response = await self._wire.create(ask_of(request.offer.offer_id), body)
        ref = text(body_of(response), "new_contract")
        error = self._wire.refused(response, CREATE)
        if error is not None:
            await self._leave_nothing(ref, error)
            raise _unclear(error, response)
        if not ref:
            # its text may hold the key of a contract
            raise OutcomeUnknown(f"vast: the answer to the create call, a {response.status_code}, names no contract")
        machine = await self._first_look(ref, request.label)
        try:
            _check_price(request, machine.price_per_hour, f"contract {ref}")
        except PriceMoved as moved:
            await self._leave_nothing(ref, moved)
            raise
        return machine

    async def _leave_nothing(self, ref: str, error: ProviderError) -> None:
        """Destroy what a create has left that is not wanted."""
        if not ref:
            return
        _log.warning("vast: destroying contract %s at once: %s", ref, error)
        self._unwanted.add(ref)
        try:
            await self.terminate(ref)
        except ProviderError as kept:
            raise OutcomeUnknown(
                f"vast: contract {ref} was created although it is not wanted ({error}), and not destroyed: {kept}"
            ) from kept

    async def _first_look(self, ref: str, label: str) -> Machine:
        """The contract just made. It exists whatever happens now: not to see it is not to know its price."""
        try:
            async with asyncio.timeout(self._options.timeout_s):
                while True:
                    row = await self._wire.show(ref)
                    if row is not None:
                        return await self._see({**row, "label": label})
                    await self._clock.sleep_ms(500)
        except (ProviderError, TimeoutError) as error:
            raise OutcomeUnknown(f"vast: contract {ref} was created and cannot be looked at: {error}") from error

    # -- what is known of contracts and hosts

    async def _see(self, row: Row) -> Machine:
        """Take in a row. An attempt is over when its container runs; a host whose container comes to nothing is blamed,
        once, unless somebody has bid more."""
        before = self._contracts.get(text(row, "id"))
        was = None if before is None else before.machine.status
        sighting = self._contracts.see(row)
        machine = sighting.machine
        if machine.status is MachineStatus.RUNNING:
            self._attempts.end(machine.label)
        never_ran = machine.status is MachineStatus.STOPPED and sighting.ran_from_ms is None and not sighting.outbid
        if never_ran and was is not MachineStatus.STOPPED and self._is_young(sighting):
            await self._blacklist.blame(sighting.host, machine.ref)
        return machine

    def _is_ours(self, row: Row) -> bool:
        label, known = text(row, "label"), self._contracts.get(text(row, "id"))
        if not label and known is not None:
            label = known.machine.label or ""
        return is_id(label, "node")

    def _is_over(self, ref: str) -> bool:
        sighting = self._contracts.get(ref)
        return sighting is not None and sighting.ended_ms is not None

    def _never_came_up(self, sighting: Sighting) -> bool:
        """Whether it has had its time, and is loading still. Whoever gives it up counts from before the create."""
        machine = sighting.machine
        had_ms = self._clock.now_ms() - machine.created_ms
        late = had_ms >= _HAD_ITS_TIME * self._options.startup_deadline_ms
        return machine.status is MachineStatus.BOOTING and sighting.ran_from_ms is None and late

    def _is_young(self, sighting: Sighting) -> bool:
        """Whether it may still be starting. An older one may have run before this process looked."""
        return self._clock.now_ms() - sighting.machine.created_ms < self._options.startup_deadline_ms


def _check_price(request: MachineRequest, price: Money, what: str) -> None:
    agreed = request.max_price_per_hour
    if price > agreed:
        raise PriceMoved(f"vast: {what} costs {price} an hour, more than the agreed {agreed}")


def _unclear(error: ProviderError, response: httpx.Response) -> ProviderError:
    """A server's error says nothing about what happened before it."""
    if isinstance(error, Transient):
        return OutcomeUnknown(f"vast answered the create call with {summary(response)}")
    return error


def _with_bill(sighting: Sighting) -> Machine:
    return replace(sighting.machine, billed=sighting.billed)
