"""The emulated cluster in the fault matrix: what is there is asked of its API, what ran of its admin port.

A machine is a Job there, and its process a pod's: both are told under the Job's name, which is what a node knows.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import httpx

import allpass
from allpass.errors import Conflict
from app.stack.emulated import Emulated
from benchmarks.fault_books import CompanyBooks

CLUSTER_GPU = "L40S"  # which no company rents out here
_MEMORY_GB, _NODES = 48, ("gpu-1", "gpu-2")
_POOL, _USD_PER_HOUR = "l40s", 0.40  # what its owner says that it costs
_MICROS_PER_HOUR = round(_USD_PER_HOUR * 1_000_000)
_JOBS = "/apis/batch/v1/namespaces/allpass/jobs"
SHAPE = {"name": _POOL, "gpu_type": CLUSTER_GPU, "gpu_memory_gb": _MEMORY_GB, "cpus": 2, "memory_gb": 8}
CLUSTER_SETTINGS: Mapping[str, str] = {
    "ALLPASS_KUBERNETES_SHAPES": json.dumps([SHAPE]),
    "ALLPASS_KUBERNETES_GRACE_S": "5",
    "ALLPASS_KUBERNETES_MAX_WAIT_S": "6",
}
_LABELS = {"nvidia.com/gpu.product": CLUSTER_GPU, "nvidia.com/gpu.memory": str(_MEMORY_GB * 1024)}
_READY = {"type": "Ready", "status": "True", "reason": "KubeletReady"}


def make_cluster_pool(client: allpass.Client) -> None:
    """So that its machines have a price in the ledger."""
    with suppress(Conflict):  # it is there
        client.create_pool(_POOL, launcher="kubernetes", price_usd=_USD_PER_HOUR)


class ClusterBooks(CompanyBooks):
    """The admin port, and the API beside it."""

    def __init__(self, one: Emulated) -> None:
        super().__init__(one)
        trust = ssl.create_default_context(cafile=one.data_dir / "tls.crt")
        headers = {"Authorization": f"Bearer {one.key}"}
        self._api = httpx.AsyncClient(base_url=one.url, headers=headers, verify=trust, trust_env=False, timeout=30)

    async def settle_in(self) -> None:
        """As the others, and all nodes are heard of."""
        await super().settle_in()
        for name in _NODES:
            await self._patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": _LABELS}})
            await self._patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [_READY]}})

    async def machines(self) -> list[dict[str, Any]]:
        """A pod's process that there ever was, or a Job that is there and has none, each at the price of its owner."""
        ran = [_at_a_price(pod) for pod in await super().machines()]
        known = {pod["ref"] for pod in ran}
        jobs = (await self._api.get(_JOBS)).raise_for_status().json()["items"]
        return ran + [_waiting(job) for job in jobs if job["metadata"]["name"] not in known]

    async def act(self, ref: str, what: str, body: Mapping[str, Any]) -> None:
        if what == "end":  # the Job first: it would make another pod
            await self._api.request("DELETE", f"{_JOBS}/{ref}", json={"propagationPolicy": "Background"})
        for pod in await super().machines():
            if pod["label"] == ref and pod["state"] != "ended":
                await super().act(pod["ref"], what, body)

    async def orphan_micros(self, owned: set[str]) -> int:
        return sum(each["bill"]["amount_micros"] for each in await self.machines() if each["ref"] not in owned)

    async def close(self) -> None:
        await super().close()
        await self._api.aclose()

    async def _patch(self, path: str, body: Mapping[str, Any]) -> None:
        headers = {"Content-Type": "application/merge-patch+json"}
        (await self._api.patch(path, content=json.dumps(body), headers=headers)).raise_for_status()


def _at_a_price(pod: Mapping[str, Any]) -> dict[str, Any]:
    """A cluster bills nobody: what its owner says, for the time in which it ran."""
    micros = round(pod["bill"]["billed_ms"] * _MICROS_PER_HOUR / 3_600_000)
    priced = {"price_micros_per_hour": _MICROS_PER_HOUR, "bill": {**pod["bill"], "amount_micros": micros}}
    return {**pod, "ref": pod["label"], **priced}


def _waiting(job: Mapping[str, Any]) -> dict[str, Any]:
    meta = job["metadata"]
    return {
        "ref": meta["name"],
        "label": meta["name"],
        "state": "booting",
        "created_ms": round(datetime.fromisoformat(meta["creationTimestamp"]).timestamp() * 1000),
        "ended_ms": None,
        "price_micros_per_hour": _MICROS_PER_HOUR,
        "storage_micros_per_hour": 0,
        "bill": {"amount_micros": 0},
    }
