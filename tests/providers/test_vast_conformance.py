"""The Vast.ai adapter sits the exam of all providers, with the emulated company on the other side."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.core.model.money import Money
from app.core.model.node import Tier
from app.errors import OfferGone
from app.ports.provider import MachineStatus, Provider
from providers.conformance.harness import TROUBLE_RETRY_AFTER_MS, BillLine, Harness, Trouble, Ways
from providers.conformance.suite import ProviderConformance, assert_refused, cheapest, request_for
from tests.ports import NOBODYS_URL
from tests.providers.cloud_process import PATIENCE_S
from tests.providers.vast_emulator import EmulatedVast

_MS_PER_HOUR = 3_600_000
_LIMITED = {"retry_after_ms": TROUBLE_RETRY_AFTER_MS}
FAULTS: dict[Trouble, dict[str, Any]] = {
    Trouble.CREATE_REPLY_LOST: {"op": "create", "when": "after", "kind": "drop"},
    Trouble.CREATE_ERROR_AFTER_EFFECT: {"op": "create", "when": "after", "kind": "error", "args": {"status": 502}},
    Trouble.CREATE_TOO_SLOW: {"op": "create", "when": "after", "kind": "slow", "ms": 12_000},
    Trouble.CREATE_DROPPED_BEFORE_EFFECT: {"op": "create", "when": "before", "kind": "drop"},
    Trouble.CREATE_ERROR_BEFORE_EFFECT: {"op": "create", "when": "before", "kind": "error"},
    Trouble.CREATE_NO_CAPACITY: {"op": "create", "kind": "no_such_ask"},
    Trouble.CREATE_OFFER_GONE: {"op": "create", "kind": "no_such_ask", "args": {"status": 410}},
    Trouble.CREATE_PRICE_MOVED: {"op": "create", "kind": "price_moves"},
    Trouble.CREATE_RATE_LIMITED: {"op": "create", "kind": "rate_limited", "args": _LIMITED},
    Trouble.CREATE_NEVER_READY: {"op": "create", "kind": "stuck"},
    Trouble.GET_DROPPED: {"op": "show", "kind": "drop"},
    Trouble.LIST_ERROR: {"op": "list", "kind": "error", "args": {"status": 504}},
    Trouble.LIST_RATE_LIMITED: {"op": "list", "kind": "rate_limited", "args": _LIMITED},
    Trouble.TERMINATE_REPLY_LOST: {"op": "destroy", "when": "after", "kind": "drop"},
    Trouble.TERMINATE_ERROR_BEFORE_EFFECT: {"op": "destroy", "when": "before", "kind": "error"},
}


class VastHarness:
    """The API tells neither when a container ran nor keeps contracts that are over: the adapter's own looks do."""

    tiers = frozenset({Tier.MARKETPLACE})
    patience_s = PATIENCE_S
    ways = Ways(times_slack_ms=5_000, dead_is=MachineStatus.STOPPED)

    def __init__(self, vast: EmulatedVast, *, bids: bool = False) -> None:
        self._vast, self._bids = vast, bids
        self.provider: Provider = vast.provider(bids=bids)

    async def arrange(self, trouble: Trouble) -> None:
        fault = FAULTS[trouble]
        self._vast.fault(**fault)

    def with_wrong_key(self) -> Provider:
        return self._vast.provider(key="wrong", bids=self._bids)

    def unreachable(self) -> Provider:
        return self._vast.provider(url=NOBODYS_URL, bids=self._bids)

    async def rent_for_somebody_else(self) -> str:
        return str(self._vast.rent(label="somebody-elses").json()["new_contract"])

    async def kill_inside(self, ref: str) -> None:
        self._vast.act(ref, "kill")

    async def bill(self, ref: str) -> BillLine:
        machine = self._vast.machine(ref)
        bill = machine["bill"]
        until_ms = machine["ended_ms"] or machine["created_ms"]
        disk = machine["storage_micros_per_hour"]
        stored_ms = until_ms - machine["created_ms"]
        # Its time is billed at the price with the disk; the disk of the rest of its life comes on top.
        charged_ms = bill["billed_ms"] if bill["from_ms"] else 0
        beside = round(disk * (stored_ms - charged_ms) / _MS_PER_HOUR)
        return BillLine(Money(bill["amount_micros"]), bill["from_ms"], bill["to_ms"], Money(beside))


class TestVastProvider(ProviderConformance):
    @pytest.fixture
    async def harness(self, vast: EmulatedVast) -> AsyncIterator[VastHarness]:
        harness = VastHarness(vast)
        yield harness
        await harness.provider.close()

    async def test_no_capacity_is_told_as_such(self, harness: Harness) -> None:
        """A marketplace of single hosts has no capacity of a kind: a host that is taken is an offer that is gone."""
        await harness.arrange(Trouble.CREATE_NO_CAPACITY)
        await assert_refused(harness, request_for(await cheapest(harness)), OfferGone)


class TestVastBids(TestVastProvider):
    """The same exam with machines that are bid for: they are the cheapest, and so what it rents."""

    @pytest.fixture
    async def harness(self, vast: EmulatedVast) -> AsyncIterator[VastHarness]:
        harness = VastHarness(vast, bids=True)
        assert (await cheapest(harness)).interruptible
        yield harness
        await harness.provider.close()
