"""The local cloud as a child of the test, and a look at what it started."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from app.ports.clock import Clock
from providers.local.adapter import LocalProvider
from providers.local.start import KEY_VARIABLE, cloud_command
from workers.machines.order import MACHINE_ID_VARIABLE
from workers.machines.processes import ProcessIdentity, marked, process_table

KEY = "test-key"
IDLE_AGENT = "{python} -S -c \"import sys, time; print('up'); print('ready', flush=True); time.sleep(600)\""
# Each machine runs what its own environment says; it idles when that says nothing.
CHOSEN_AGENT = "sh -c 'echo up; echo ready; eval \"${AGENT:-exec sleep 600}\"'"
PATIENCE_S = 30.0  # of a busy host, with processes


class WallClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: int) -> None:
        raise AssertionError("an adapter never sleeps")


class CloudProcess:
    """`api` is an authenticated client of its HTTP API."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url
        headers = {"Authorization": f"Bearer {KEY}"}
        self.api = httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=PATIENCE_S)

    @classmethod
    def start(cls, data_dir: Path, **options: Any) -> CloudProcess:
        given = {"port": 0, "speed": 0.0, "agent_command": IDLE_AGENT} | options
        process = subprocess.Popen(
            cloud_command(data_dir, **given),
            env={**os.environ, KEY_VARIABLE: KEY, "SECRET_OF_THE_HOST": "do not pass on"},
            stdout=subprocess.PIPE,
            text=True,
        )
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise AssertionError(f"the cloud did not start: exit code {process.wait()}")
        return cls(process, json.loads(line)["url"])

    def provider(self, *, key: str = KEY, timeout_s: float = 10.0, clock: Clock | None = None) -> LocalProvider:
        return LocalProvider(self.url, key, timeout_s=timeout_s, clock=clock or WallClock())

    def rent(self, offer_id: str = "serverless-a100-x1", **fields: Any) -> dict[str, Any]:
        """Rent a machine through the bare API."""
        body = {"label": "exam", "offer_id": offer_id, "max_price_micros_per_hour": 10**9, "image": "i", "env": {}}
        return ok(self.api.post("/v1/machines", json=body | fields))

    def machine(self, machine_id: str) -> dict[str, Any]:
        return ok(self.api.get(f"/v1/machines/{machine_id}"))

    def until(self, machine_id: str, status: str) -> dict[str, Any]:
        """The machine, once it has this status."""
        return eventually(lambda: (seen := self.machine(machine_id))["status"] == status and seen)

    def log_of(self, machine_id: str) -> str:
        return self.api.get(f"/v1/machines/{machine_id}/logs", params={"tail": 1000}).text

    def bill_of(self, machine_id: str) -> dict[str, Any]:
        lines = ok(self.api.get("/v1/bill"))["lines"]
        return next(line for line in lines if line["machine_id"] == machine_id)

    def clean_up(self) -> None:
        """Drop the faults and end what lives."""
        ok(self.api.delete("/admin/faults"))
        for machine in ok(self.api.get("/v1/machines"))["machines"]:
            if machine["status"] != "ended":
                ok(self.api.delete(f"/v1/machines/{machine['id']}"))

    def terminate_process(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        """SIGKILL, and forget it; harmless when it has ended."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        self.api.close()


def ok(response: httpx.Response) -> dict[str, Any]:
    assert response.is_success, response.text
    body = response.json()
    assert isinstance(body, dict)
    return body


def eventually(probe: Callable[[], Any]) -> Any:
    """The first truthy answer; fails after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = probe()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"nothing after {PATIENCE_S} s"
        time.sleep(0.02)


def processes_of(machine_id: str) -> list[ProcessIdentity]:
    """Every live process that carries the machine's mark, its keeper included."""
    return marked(process_table(), MACHINE_ID_VARIABLE, machine_id)


def processes_under(folder: Path) -> list[ProcessIdentity]:
    """Every live process that runs on a machine whose disk lies under this folder, and their keepers."""
    found = []
    for row in process_table():
        proc = Path("/proc", str(row.identity.pid))
        with contextlib.suppress(OSError):  # it ended meanwhile
            words = (proc / "environ").read_bytes() + (proc / "cmdline").read_bytes()
            if f"{folder}/".encode() in words and b"ALLPASS_MACHINE_ID=" in words:
                found.append(row.identity)
    return found


def agent_of(machine_id: str) -> ProcessIdentity:
    """The process that the keeper started."""
    rows = {row.identity: row for row in process_table()}
    # Oldest first: the parent of a younger one may have ended between both looks.
    marked_ones = (one for one in processes_of(machine_id) if one in rows)
    own = sorted(marked_ones, key=lambda one: (len(one.started), one.started, one.pid))
    pids = {identity.pid for identity in own}
    keeper = next(identity for identity in own if rows[identity].parent_pid not in pids)
    return next(identity for identity in own if rows[identity].parent_pid == keeper.pid)
