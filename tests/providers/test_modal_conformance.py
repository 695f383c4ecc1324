"""Modal, as emulated, sits the exam of all providers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.core.model.money import Money
from app.core.model.node import Tier
from app.ports.provider import Provider
from providers.conformance.harness import TROUBLE_RETRY_AFTER_MS, BillLine, Trouble, Ways
from providers.conformance.suite import ProviderConformance
from providers.modal.sdk import modal
from tests.ports import NOBODYS_URL
from tests.providers.cloud_process import PATIENCE_S
from tests.providers.modal_emulator import EmulatedModal, provider_at

ADAPTER_TIMEOUT_S = 10.0  # a create call waits three fifths of it for a machine
UNREACHABLE_TIMEOUT_S = 0.2
FAULTS: dict[Trouble, dict[str, Any]] = {
    Trouble.CREATE_REPLY_LOST: {"op": "create", "kind": "drop", "when": "after"},
    Trouble.CREATE_ERROR_AFTER_EFFECT: {"op": "create", "kind": "error", "when": "after"},
    Trouble.CREATE_TOO_SLOW: {"op": "create", "kind": "hang", "when": "after"},
    Trouble.CREATE_DROPPED_BEFORE_EFFECT: {"op": "create", "kind": "drop", "when": "before"},
    Trouble.CREATE_ERROR_BEFORE_EFFECT: {"op": "create", "kind": "error", "when": "before"},
    Trouble.CREATE_NO_CAPACITY: {"op": "create", "kind": "never_scheduled"},
    Trouble.CREATE_RATE_LIMITED: {"op": "create", "kind": "throttle", "ms": TROUBLE_RETRY_AFTER_MS},
    Trouble.CREATE_NEVER_READY: {"op": "create", "kind": "never_starts"},
    Trouble.GET_DROPPED: {"op": "get", "kind": "drop"},
    Trouble.LIST_ERROR: {"op": "list", "kind": "error"},
    Trouble.LIST_RATE_LIMITED: {"op": "list", "kind": "throttle", "ms": TROUBLE_RETRY_AFTER_MS},
    Trouble.TERMINATE_REPLY_LOST: {"op": "terminate", "kind": "drop", "when": "after"},
    Trouble.TERMINATE_ERROR_BEFORE_EFFECT: {"op": "terminate", "kind": "error", "when": "before"},
}


class ModalHarness:
    """The emulator that all tests share; each finds it without faults and without live machines."""

    tiers = frozenset({Tier.SERVERLESS})
    patience_s = PATIENCE_S
    # Prices are a published list: no call of Modal's refuses an offer, or a price.
    ways = Ways(impossible=frozenset(set(Trouble) - set(FAULTS)))

    def __init__(self, emulator: EmulatedModal) -> None:
        self._emulator = emulator
        self.provider: Provider = emulator.provider(timeout_s=ADAPTER_TIMEOUT_S)

    async def arrange(self, trouble: Trouble) -> None:
        self._emulator.fault(**FAULTS[trouble])

    def with_wrong_key(self) -> Provider:
        return self._emulator.provider(token_secret="as-wrong")

    def unreachable(self) -> Provider:
        return provider_at(NOBODYS_URL, timeout_s=UNREACHABLE_TIMEOUT_S)

    async def rent_for_somebody_else(self) -> str:
        client = await self._emulator.client()
        app = await modal.App.lookup.aio("somebody-elses", client=client, create_if_missing=True)
        image = modal.Image.from_registry("python:3.11-slim")
        sandbox = await modal.Sandbox.create.aio("sleep", "600", app=app, image=image, gpu="T4", client=client)
        await client.close.aio()
        return str(sandbox.object_id)

    async def kill_inside(self, ref: str) -> None:
        self._emulator.act(ref, "kill")

    async def bill(self, ref: str) -> BillLine:
        line = self._emulator.bill(ref)
        return BillLine(Money(line["amount_micros"]), line["from_ms"], line["to_ms"])


class TestModalProvider(ProviderConformance):
    @pytest.fixture
    async def harness(self, shared_modal: EmulatedModal) -> AsyncIterator[ModalHarness]:
        harness = ModalHarness(shared_modal)
        yield harness
        await harness.provider.close()
