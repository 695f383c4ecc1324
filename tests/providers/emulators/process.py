"""An emulator as a child of the test, and a client of its admin port."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import httpx

from providers.emulators.serving import ADMIN_KEY_VARIABLE, KEY_VARIABLE, emulator_command
from tests.providers.cloud_process import PATIENCE_S, agent_of, eventually, ok
from workers.machines.processes import ProcessIdentity

KEY, ADMIN_KEY = "customer-key", "admin-key"


class EmulatorProcess:
    """`admin` is an authenticated client of the admin port, `url` the company's own address."""

    def __init__(self, process: subprocess.Popen[str], told: dict[str, str]) -> None:
        self.process = process
        self.url = told["url"]
        self.admin_url = told["admin_url"]
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        self.admin = httpx.Client(base_url=self.admin_url, headers=headers, trust_env=False, timeout=30)

    @classmethod
    def start(cls, name: str, data_dir: Path, **options: Any) -> EmulatorProcess:
        process = subprocess.Popen(
            emulator_command(name, data_dir, **options),
            env={**os.environ, KEY_VARIABLE: KEY, ADMIN_KEY_VARIABLE: ADMIN_KEY, "SECRET_OF_THE_HOST": "no"},
            stdout=subprocess.PIPE,
            text=True,
        )
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise AssertionError(f"the emulator did not start: exit code {process.wait()}")
        return cls(process, json.loads(line))

    def fault(self, **fault: Any) -> None:
        """Ask for a fault."""
        ok(self.admin.post("/admin/faults", json=fault))

    def switch(self, **values: Any) -> None:
        ok(self.admin.post("/admin/switches", json=values))

    def market(self, **script: Any) -> None:
        ok(self.admin.post("/admin/market", json=script))

    def machines(self) -> list[dict[str, Any]]:
        return list(ok(self.admin.get("/admin/machines"))["machines"])

    def machine(self, ref: str) -> dict[str, Any]:
        return ok(self.admin.get(f"/admin/machines/{ref}"))

    def until(self, ref: str, state: str) -> dict[str, Any]:
        """The machine, once it is in this state."""
        return eventually(lambda: (seen := self.machine(ref))["state"] == state and not seen["ending"] and seen)

    def act(self, ref: str, what: str, **body: Any) -> dict[str, Any]:
        return ok(self.admin.post(f"/admin/machines/{ref}/{what}", json=body))

    def log_of(self, ref: str) -> str:
        return self.admin.get(f"/admin/machines/{ref}/log", params={"tail": 1000}).text

    def program_of(self, ref: str) -> ProcessIdentity:
        return agent_of(ref)

    def clean_up(self) -> None:
        """As it was in the beginning, but for the books."""
        for path in ("/admin/faults", "/admin/switches", "/admin/market"):
            ok(self.admin.delete(path))
        for machine in self.machines():
            if machine["state"] != "ended":
                self.act(machine["ref"], "end")

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        """SIGKILL, and forget it; harmless when it has ended."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        self.admin.close()
