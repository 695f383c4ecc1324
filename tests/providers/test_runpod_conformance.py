"""The RunPod adapter sits the exam of all providers, against the emulated RunPod."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.core.model.money import Money
from app.core.model.node import Tier
from app.errors import OfferGone
from app.ports.provider import MachineStatus, Provider
from providers.conformance.harness import TROUBLE_RETRY_AFTER_MS, BillLine, Harness, Trouble, Ways
from providers.conformance.suite import ProviderConformance, cheapest, rent, request_for
from providers.emulators.runpod.goods import good_name
from providers.runpod.catalogue import split_offer_id
from tests.ports import NOBODYS_URL
from tests.providers.cloud_process import PATIENCE_S, eventually, ok
from tests.providers.emulators.process import EmulatorProcess
from tests.providers.runpod_account import RunpodAccount, provider

_LIMITED = {"kind": "error", "args": {"status": 429, "retry_after_s": TROUBLE_RETRY_AFTER_MS / 1000}}
_BROKEN = {"kind": "error", "args": {"status": 500}}
FAULTS: dict[Trouble, dict[str, Any]] = {
    Trouble.CREATE_REPLY_LOST: {"op": "create", "when": "after", "kind": "drop"},
    Trouble.CREATE_ERROR_AFTER_EFFECT: {"op": "create", "when": "after", **_BROKEN},
    Trouble.CREATE_TOO_SLOW: {"op": "create", "when": "after", "kind": "slow", "ms": 12_000},
    Trouble.CREATE_DROPPED_BEFORE_EFFECT: {"op": "create", "when": "before", "kind": "drop"},
    Trouble.CREATE_ERROR_BEFORE_EFFECT: {"op": "create", "when": "before", **_BROKEN},
    Trouble.CREATE_NO_CAPACITY: {"op": "create", "kind": "no_capacity"},
    Trouble.CREATE_PRICE_MOVED: {"op": "create", "kind": "price_moves"},
    Trouble.CREATE_RATE_LIMITED: {"op": "create", **_LIMITED},
    Trouble.CREATE_NEVER_READY: {"op": "create", "kind": "never_ready"},
    Trouble.GET_DROPPED: {"op": "get", "kind": "drop"},
    Trouble.LIST_ERROR: {"op": "list", **_BROKEN},
    Trouble.LIST_RATE_LIMITED: {"op": "list", **_LIMITED},
    Trouble.TERMINATE_REPLY_LOST: {"op": "delete", "when": "after", "kind": "drop"},
    Trouble.TERMINATE_ERROR_BEFORE_EFFECT: {"op": "delete", "when": "before", **_BROKEN},
}


class RunpodHarness:
    """RunPod tells in whole seconds when a pod started, and not when it ended; a pod whose program ends is kept."""

    tiers = frozenset({Tier.CONVENTIONAL, Tier.MARKETPLACE})
    patience_s = PATIENCE_S
    ways = Ways(times_slack_ms=10_000, dead_is=MachineStatus.STOPPED, shows_logs=False)

    def __init__(self, emulator: EmulatorProcess, account: RunpodAccount) -> None:
        self._emulator = emulator
        self._account = account
        self.provider: Provider = self._client(emulator.url)

    @staticmethod
    def _client(url: str, **options: Any) -> Provider:
        return provider(url, clouds=("SECURE", "COMMUNITY"), **options)

    async def arrange(self, trouble: Trouble) -> None:
        if trouble in FAULTS:
            self._emulator.fault(**FAULTS[trouble])
            return
        assert trouble is Trouble.CREATE_OFFER_GONE
        wanted = split_offer_id((await cheapest(self)).offer_id)
        assert wanted is not None
        self._emulator.market(supply={good_name(wanted[0], wanted[2]): 0})

    def with_wrong_key(self) -> Provider:
        return self._client(self._emulator.url, key="wrong")

    def unreachable(self) -> Provider:
        return self._client(NOBODYS_URL)

    async def rent_for_somebody_else(self) -> str:
        return self._account.created()

    async def kill_inside(self, ref: str) -> None:
        self._emulator.act(ref, "kill")

    async def bill(self, ref: str) -> BillLine:
        """Once what ran there has been killed: a deletion is accepted before that."""
        line = eventually(lambda: self._final_line(ref))
        return BillLine(Money(line["amount_micros"]), line["from_ms"], line["to_ms"])

    def _final_line(self, ref: str) -> dict[str, Any] | None:
        lines = ok(self._emulator.admin.get("/admin/ledger"))["lines"]
        return next((line for line in lines if line["ref"] == ref and line["final"]), None)


class TestRunpod(ProviderConformance):
    @pytest.fixture
    async def harness(
        self, shared_runpod: EmulatorProcess, runpod_account: RunpodAccount
    ) -> AsyncIterator[RunpodHarness]:
        harness = RunpodHarness(shared_runpod, runpod_account)
        yield harness
        await harness.provider.close()

    async def test_a_single_host_is_rented_once(self, harness: Harness) -> None:
        """Nobody picks a host at RunPod: where the last GPU of a kind is taken, the offer is gone."""
        offer = await cheapest(harness, Tier.MARKETPLACE)
        await harness.arrange(Trouble.CREATE_OFFER_GONE)
        assert offer.key not in {each.key for each in await harness.provider.offers()}
        with pytest.raises(OfferGone):
            await harness.provider.create(request_for(offer))
        assert (await rent(harness, Tier.CONVENTIONAL)).tier is Tier.CONVENTIONAL
