"""The adapter of Kubernetes sits the exam of all providers, against the emulated cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.core.model.money import Money
from app.core.model.node import Tier
from app.ports.provider import Machine, MachineStatus, Provider
from providers.conformance.harness import TROUBLE_RETRY_AFTER_MS, BillLine, Trouble, Ways
from providers.conformance.suite import ProviderConformance, rent, until
from tests.ports import NOBODYS_URL
from tests.providers.cloud_process import PATIENCE_S, eventually, ok
from tests.providers.emulators.process import KEY
from tests.providers.kubernetes_cluster import EmulatedCluster

_LIMITED = {"kind": "error", "args": {"status": 429, "retry_after_s": TROUBLE_RETRY_AFTER_MS / 1000}}
_BROKEN = {"kind": "error", "args": {"status": 500}}
# Twice: what may be repeated is sent once more by the library itself.
FAULTS: dict[Trouble, dict[str, Any]] = {
    Trouble.CREATE_REPLY_LOST: {"op": "create_jobs", "when": "after", "kind": "drop"},
    Trouble.CREATE_ERROR_AFTER_EFFECT: {"op": "create_jobs", "when": "after", **_BROKEN},
    Trouble.CREATE_TOO_SLOW: {"op": "create_jobs", "when": "after", "kind": "slow", "ms": 12_000},
    Trouble.CREATE_DROPPED_BEFORE_EFFECT: {"op": "create_jobs", "when": "before", "kind": "drop"},
    Trouble.CREATE_ERROR_BEFORE_EFFECT: {"op": "create_jobs", "when": "before", **_BROKEN},
    Trouble.CREATE_RATE_LIMITED: {"op": "create_jobs", **_LIMITED},
    Trouble.CREATE_NEVER_READY: {"op": "create_jobs", "kind": "never_ready"},
    Trouble.GET_DROPPED: {"op": "get_jobs", "kind": "drop", "count": 2},
    Trouble.LIST_ERROR: {"op": "list_jobs", **_BROKEN},
    Trouble.LIST_RATE_LIMITED: {"op": "list_jobs", **_LIMITED},
    Trouble.TERMINATE_REPLY_LOST: {"op": "delete_jobs", "when": "after", "kind": "drop", "count": 2},
    Trouble.TERMINATE_ERROR_BEFORE_EFFECT: {"op": "delete_jobs", "when": "before", **_BROKEN},
}


class KubernetesHarness:
    """A cluster tells in whole seconds when a program began and ended. It has neither prices nor offers of its own, and
    says of what has no place not a word: that waits."""

    tiers = frozenset({Tier.OWN})
    patience_s = PATIENCE_S
    ways = Ways(
        times_slack_ms=10_000,
        impossible=frozenset({Trouble.CREATE_NO_CAPACITY, Trouble.CREATE_OFFER_GONE, Trouble.CREATE_PRICE_MOVED}),
    )

    def __init__(self, cluster: EmulatedCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self.provider: Provider = cluster.provider()

    async def arrange(self, trouble: Trouble) -> None:
        self._cluster.fault(**FAULTS[trouble])

    def with_wrong_key(self) -> Provider:
        return self._cluster.provider(kubeconfig=self._cluster.variant(self._folder / "wrong", KEY, "wrong"))

    def unreachable(self) -> Provider:
        nobodys = NOBODYS_URL.replace("http:", "https:")
        return self._cluster.provider(
            kubeconfig=self._cluster.variant(self._folder / "nobody", self._cluster.url, nobodys)
        )

    async def rent_for_somebody_else(self) -> str:
        return str(self._cluster.post("jobs", self._cluster.job())["metadata"]["name"])

    async def kill_inside(self, ref: str) -> None:
        self._cluster.act(self._cluster.uid_of(ref), "kill")

    async def bill(self, ref: str) -> BillLine:
        """When what ran there began and ended, by the emulator's own books."""
        line = eventually(lambda: self._final_line(ref))
        return BillLine(Money(line["amount_micros"]), line["from_ms"], line["to_ms"])

    def _final_line(self, ref: str) -> dict[str, Any] | None:
        lines = ok(self._cluster.admin.get("/admin/ledger"))["lines"]
        nothing = {"amount_micros": 0, "from_ms": None, "to_ms": None, "final": True}
        found = next((line for line in lines if line["label"] == ref), nothing)
        return found if found["final"] else None


class TestKubernetes(ProviderConformance):
    @pytest.fixture
    async def harness(self, cluster: EmulatedCluster, tmp_path: Path) -> AsyncIterator[KubernetesHarness]:
        harness = KubernetesHarness(cluster, tmp_path)
        yield harness
        await harness.provider.close()

    async def test_no_capacity_is_told_as_such(self, harness: KubernetesHarness) -> None:
        """A cluster refuses nobody for want of room: the machine is there, and waits, and says for what."""
        await harness.arrange(Trouble.CREATE_NEVER_READY)
        machine = await rent(harness)
        waiting = await until(harness, lambda: _with_detail(harness.provider, machine.ref))
        assert waiting.status is MachineStatus.BOOTING
        assert "nodes are available" in waiting.detail


async def _with_detail(provider: Provider, ref: str) -> Machine | None:
    machine = await provider.get(ref)
    return machine if machine is not None and "Unschedulable" in machine.detail else None
