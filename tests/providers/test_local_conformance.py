"""The local provider sits the exam of all providers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.core.model.money import Money
from app.core.model.node import RENTED_TIERS
from app.ports.provider import Provider
from providers.conformance.harness import TROUBLE_RETRY_AFTER_MS, BillLine, Trouble, Ways
from providers.conformance.suite import ProviderConformance
from providers.local.adapter import LocalProvider
from tests.ports import NOBODYS_URL
from tests.providers.cloud_process import PATIENCE_S, CloudProcess, WallClock, agent_of, eventually, ok
from workers.machines.processes import send_signal

ADAPTER_TIMEOUT_S = 10.0  # the end of a machine is waited for
FAULTS: dict[Trouble, dict[str, Any]] = {
    Trouble.CREATE_REPLY_LOST: {"op": "create", "when": "after", "kind": "drop_connection"},
    Trouble.CREATE_ERROR_AFTER_EFFECT: {"op": "create", "when": "after", "kind": "error_500"},
    Trouble.CREATE_TOO_SLOW: {"op": "create", "when": "after", "kind": "hang_ms", "ms": 12_000},
    Trouble.CREATE_DROPPED_BEFORE_EFFECT: {"op": "create", "when": "before", "kind": "drop_connection"},
    Trouble.CREATE_ERROR_BEFORE_EFFECT: {"op": "create", "when": "before", "kind": "error_500"},
    Trouble.CREATE_NO_CAPACITY: {"op": "create", "kind": "no_capacity"},
    Trouble.CREATE_OFFER_GONE: {"op": "create", "kind": "offer_gone"},
    Trouble.CREATE_PRICE_MOVED: {"op": "create", "kind": "price_moved"},
    Trouble.CREATE_RATE_LIMITED: {"op": "create", "kind": "rate_limited", "ms": TROUBLE_RETRY_AFTER_MS},
    Trouble.CREATE_NEVER_READY: {"op": "create", "kind": "never_ready"},
    Trouble.GET_DROPPED: {"op": "get", "kind": "drop_connection"},
    Trouble.LIST_ERROR: {"op": "list", "kind": "error_500"},
    Trouble.LIST_RATE_LIMITED: {"op": "list", "kind": "rate_limited", "ms": TROUBLE_RETRY_AFTER_MS},
    Trouble.TERMINATE_REPLY_LOST: {"op": "terminate", "when": "after", "kind": "drop_connection"},
    Trouble.TERMINATE_ERROR_BEFORE_EFFECT: {"op": "terminate", "when": "before", "kind": "error_500"},
}


class LocalHarness:
    """The cloud that all tests share; each finds it without faults and without live machines."""

    tiers = frozenset(RENTED_TIERS)
    patience_s = PATIENCE_S
    ways = Ways()

    def __init__(self, cloud: CloudProcess) -> None:
        self._cloud = cloud
        self.provider: Provider = cloud.provider(timeout_s=ADAPTER_TIMEOUT_S)

    async def arrange(self, trouble: Trouble) -> None:
        ok(self._cloud.api.post("/admin/faults", json=FAULTS[trouble]))

    def with_wrong_key(self) -> Provider:
        return self._cloud.provider(key="wrong")

    def unreachable(self) -> Provider:
        return LocalProvider(NOBODYS_URL, "any", timeout_s=ADAPTER_TIMEOUT_S, clock=WallClock())

    async def rent_for_somebody_else(self) -> str:
        return str(self._cloud.rent(label="somebody-elses")["id"])

    async def kill_inside(self, ref: str) -> None:
        eventually(lambda: self._cloud.log_of(ref))
        assert send_signal(agent_of(ref), 9)

    async def bill(self, ref: str) -> BillLine:
        line = self._cloud.bill_of(ref)
        return BillLine(Money(line["amount_micros"]), line["from_ms"], line["to_ms"])


class TestLocalProvider(ProviderConformance):
    @pytest.fixture
    async def harness(self, shared_cloud: CloudProcess) -> AsyncIterator[LocalHarness]:
        harness = LocalHarness(shared_cloud)
        yield harness
        await harness.provider.close()
