"""The emulated Vast.ai as a child of the test, and the real adapter pointed at it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx

from app.ports.clock import Clock
from app.ports.failures import HostFailures, ProcessHostFailures
from app.ports.pace import Pace
from app.ports.provider import MachineRequest
from providers.emulators.serving import ADMIN_KEY_VARIABLE, KEY_VARIABLE, emulator_command
from providers.vast.adapter import VastProvider
from providers.vast.options import VastOptions
from tests.providers.cloud_process import PATIENCE_S, ok

KEY, ADMIN_KEY = "vast-key", "vast-admin-key"
TIMEOUT_S = 10.0
# Each machine does what its own environment says; it idles when that says nothing.
SCRIPT = 'echo up; echo ready; eval "${AGENT:-exec sleep 600}"'


class SystemTime:
    """The real clock; waits are short."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(min(duration_ms, 50) / 1000)


class NoPace:
    """Lets every call pass, and notes the turns that were asked for."""

    def __init__(self) -> None:
        self.turns: list[tuple[str, int]] = []

    async def turn(self, lane: str, every_ms: int) -> None:
        self.turns.append((lane, every_ms))


def idle(_: MachineRequest) -> str:
    """In place of the real bootstrap."""
    return SCRIPT


class EmulatedVast:
    """`admin` is a client of the test's door, `api` one of the company's API."""

    def __init__(self, process: subprocess.Popen[str], url: str, admin_url: str) -> None:
        self.process = process
        self.url = url
        self.admin = httpx.Client(
            base_url=admin_url, headers={"Authorization": f"Bearer {ADMIN_KEY}"}, trust_env=False, timeout=PATIENCE_S
        )
        self.api = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {KEY}"}, trust_env=False, timeout=PATIENCE_S
        )

    @classmethod
    def start(cls, data_dir: Path, **options: Any) -> EmulatedVast:
        process = subprocess.Popen(
            emulator_command("vast", data_dir, **options),
            env={**os.environ, KEY_VARIABLE: KEY, ADMIN_KEY_VARIABLE: ADMIN_KEY},
            stdout=subprocess.PIPE,
            text=True,
        )
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise AssertionError(f"the emulator did not start: exit code {process.wait()}")
        told = json.loads(line)
        return cls(process, told["url"], told["admin_url"])

    def provider(
        self,
        *,
        key: str = KEY,
        url: str | None = None,
        clock: Clock | None = None,
        pace: Pace | None = None,
        failures: HostFailures | None = None,
        bootstrap: Any = idle,
        **options: Any,
    ) -> VastProvider:
        given = {"timeout_s": TIMEOUT_S, "lease_h": 24.0, "verified": False, "reliability": 0.0, "cuda": 12.0} | options
        vast = VastOptions(api_key=key, base_url=url or self.url, **given)
        return VastProvider(
            vast,
            clock=clock or SystemTime(),
            pace=pace or NoPace(),
            failures=failures or ProcessHostFailures(),
            bootstrap=bootstrap,
        )

    def fault(self, op: str, kind: str, **fields: Any) -> None:
        """Have the next call of this operation go wrong."""
        ok(self.admin.post("/admin/faults", json={"op": op, "kind": kind, **fields}))

    def switch(self, **values: Any) -> None:
        ok(self.admin.post("/admin/switches", json=values))

    def act(self, ref: str, what: str, **body: Any) -> dict[str, Any]:
        """Make something happen to a machine."""
        return ok(self.admin.post(f"/admin/machines/{ref}/{what}", json=body))

    def machine(self, ref: str) -> dict[str, Any]:
        """All that the emulator knows of it."""
        return ok(self.admin.get(f"/admin/machines/{ref}"))

    def machines(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = ok(self.admin.get("/admin/machines"))["machines"]
        return listed

    def live(self) -> list[dict[str, Any]]:
        return [machine for machine in self.machines() if machine["state"] != "ended"]

    def log_of(self, ref: str) -> str:
        return self.admin.get(f"/admin/machines/{ref}/log").text

    def rent(self, offer_id: str | int | None = None, **fields: Any) -> httpx.Response:
        """A create call through the bare API."""
        wanted = self.search()[0]["id"] if offer_id is None else offer_id
        body = {"client_id": "me", "image": "i", "disk": 10, "runtype": "args", "args": ["sh", "-c", SCRIPT]}
        return self.api.put(f"/api/v0/asks/{wanted}/", json=body | fields)

    def search(self, **filters: Any) -> list[dict[str, Any]]:
        """The offers found through the bare API."""
        found: list[dict[str, Any]] = ok(self.api.post("/api/v0/bundles/", json=filters))["offers"]
        return found

    def clean_up(self) -> None:
        """As it was at first: no faults, no live machines."""
        for what in ("faults", "switches", "market"):
            ok(self.admin.delete(f"/admin/{what}"))
        for machine in self.live():
            self.act(machine["ref"], "end")

    def terminate_process(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        """SIGKILL, and forget it; harmless when it has ended."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        self.admin.close()
        self.api.close()
