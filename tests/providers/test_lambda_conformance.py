"""The Lambda adapter sits the exam of all providers, against the emulated Lambda."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.core.model.money import Money
from app.core.model.node import Tier
from app.ports.provider import MachineStatus, Provider
from providers.conformance.harness import TROUBLE_RETRY_AFTER_MS, BillLine, Trouble, Ways
from providers.conformance.suite import ProviderConformance, cheapest
from tests.ports import NOBODYS_URL
from tests.providers.cloud_process import PATIENCE_S, ok
from tests.providers.emulators.process import EmulatorProcess
from tests.providers.lambda_account import LambdaAccount, provider

_LIMITED = {"kind": "error", "args": {"status": 429, "retry_after_s": TROUBLE_RETRY_AFTER_MS / 1000}}
_BROKEN = {"kind": "error", "args": {"code": "global/internal-error"}}
FAULTS: dict[Trouble, dict[str, Any]] = {
    Trouble.CREATE_REPLY_LOST: {"op": "launch", "when": "after", "kind": "drop"},
    Trouble.CREATE_ERROR_AFTER_EFFECT: {"op": "launch", "when": "after", **_BROKEN},
    Trouble.CREATE_TOO_SLOW: {"op": "launch", "when": "after", "kind": "slow", "ms": 12_000},
    Trouble.CREATE_DROPPED_BEFORE_EFFECT: {"op": "launch", "when": "before", "kind": "drop"},
    Trouble.CREATE_ERROR_BEFORE_EFFECT: {"op": "launch", "when": "before", **_BROKEN},
    Trouble.CREATE_NO_CAPACITY: {"op": "launch", "kind": "no_capacity"},
    Trouble.CREATE_RATE_LIMITED: {"op": "launch", **_LIMITED},
    Trouble.CREATE_NEVER_READY: {"op": "launch", "kind": "never_ready"},
    Trouble.GET_DROPPED: {"op": "get", "kind": "drop"},
    Trouble.LIST_ERROR: {"op": "list", **_BROKEN},
    Trouble.LIST_RATE_LIMITED: {"op": "list", **_LIMITED},
    Trouble.TERMINATE_REPLY_LOST: {"op": "terminate", "when": "after", "kind": "drop"},
    Trouble.TERMINATE_ERROR_BEFORE_EFFECT: {"op": "terminate", "when": "before", **_BROKEN},
}


class LambdaHarness:
    """The emulator that all tests share; each finds it without faults and without live machines.

    Lambda tells no times, shows no logs, and goes on billing a machine on which all has died.
    """

    tiers = frozenset({Tier.CONVENTIONAL})
    patience_s = PATIENCE_S
    ways = Ways(times_slack_ms=10_000, dead_is=MachineStatus.RUNNING, shows_logs=False)

    def __init__(self, emulator: EmulatorProcess, account: LambdaAccount) -> None:
        self._emulator = emulator
        self._account = account
        self.provider: Provider = provider(emulator.url)

    async def arrange(self, trouble: Trouble) -> None:
        if trouble in FAULTS:
            self._emulator.fault(**FAULTS[trouble])
            return
        offer = await cheapest(self)
        type_name = offer.offer_id.partition("@")[0]
        if trouble is Trouble.CREATE_OFFER_GONE:
            self._emulator.market(supply={type_name: 0})
        else:
            assert trouble is Trouble.CREATE_PRICE_MOVED
            self._emulator.market(price_micros={type_name: offer.price_per_hour.micros + 10_000})

    def with_wrong_key(self) -> Provider:
        return provider(self._emulator.url, key="wrong")

    def unreachable(self) -> Provider:
        return provider(NOBODYS_URL)

    async def rent_for_somebody_else(self) -> str:
        return self._account.launched()

    async def kill_inside(self, ref: str) -> None:
        self._emulator.act(ref, "kill")

    async def bill(self, ref: str) -> BillLine:
        lines = ok(self._emulator.admin.get("/admin/ledger"))["lines"]
        line = next(line for line in lines if line["ref"] == ref)
        return BillLine(Money(line["amount_micros"]), line["from_ms"], line["to_ms"])


class TestLambda(ProviderConformance):
    @pytest.fixture
    async def harness(
        self, shared_lambda: EmulatorProcess, lambda_account: LambdaAccount
    ) -> AsyncIterator[LambdaHarness]:
        harness = LambdaHarness(shared_lambda, lambda_account)
        yield harness
        await harness.provider.close()
