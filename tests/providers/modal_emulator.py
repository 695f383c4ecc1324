"""The emulated Modal as a child of the test, and providers and clients that talk to it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from app.core.images.logins import RegistryLogins
from app.core.model.offer import Offer
from app.ports.provider import Machine, MachineRequest
from providers.conformance.suite import new_label
from providers.emulators.serving import ADMIN_KEY_VARIABLE, KEY_VARIABLE, emulator_command
from providers.modal import sdk
from providers.modal.adapter import ModalProvider
from providers.modal.catalogue import Catalogue, Shape
from providers.modal.launch import Launch
from providers.modal.link import Account
from tests.providers.cloud_process import PATIENCE_S, WallClock, eventually, ok

TOKEN_ID, TOKEN_SECRET = "ak-test", "as-test"
ADMIN_KEY = "test-admin-key"
IMAGE = "allpass/node:exam"
IDLE = "echo up; echo ready; exec sleep 600"


class EmulatedModal:
    """`admin` is an authenticated client of the admin port."""

    def __init__(self, process: subprocess.Popen[str], said: Mapping[str, str]) -> None:
        self.process = process
        self.url = said["url"]
        self.admin = httpx.Client(
            base_url=said["admin_url"],
            headers={"Authorization": f"Bearer {ADMIN_KEY}"},
            trust_env=False,
            timeout=PATIENCE_S,
        )

    @classmethod
    def start(cls, data_dir: Path, **options: Any) -> EmulatedModal:
        process = subprocess.Popen(
            emulator_command("modal", data_dir, **options),
            env={**os.environ, KEY_VARIABLE: f"{TOKEN_ID}:{TOKEN_SECRET}", ADMIN_KEY_VARIABLE: ADMIN_KEY},
            stdout=subprocess.PIPE,
            text=True,
        )
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise AssertionError(f"the emulator did not start: exit code {process.wait()}")
        return cls(process, json.loads(line))

    def provider(
        self, *, program: str = IDLE, timeout_s: float = 10.0, logins: RegistryLogins | None = None, **account: str
    ) -> ModalProvider:
        """A provider of this account whose sandboxes run `program`."""
        return provider_at(self.url, program=program, timeout_s=timeout_s, logins=logins, **account)

    async def client(self) -> Any:
        """Modal's own client, with nothing of ours around it."""
        return await sdk.open_client(self.url, TOKEN_ID, TOKEN_SECRET)

    def fault(self, op: str, kind: str, **fields: Any) -> None:
        ok(self.admin.post("/admin/faults", json={"op": op, "kind": kind, **fields}))

    def switch(self, **switches: Any) -> None:
        ok(self.admin.post("/admin/switches", json=switches))

    def act(self, ref: str, what: str, **fields: Any) -> dict[str, Any]:
        return ok(self.admin.post(f"/admin/machines/{ref}/{what}", json=fields))

    def machines(self, label: str | None = None) -> list[dict[str, Any]]:
        """As the emulator itself has them, oldest first."""
        listed: list[dict[str, Any]] = ok(self.admin.get("/admin/machines"))["machines"]
        return [machine for machine in listed if label is None or machine["label"] == label]

    def machine(self, ref: str) -> dict[str, Any]:
        return ok(self.admin.get(f"/admin/machines/{ref}"))

    def log_of(self, ref: str) -> str:
        return self.admin.get(f"/admin/machines/{ref}/log").text

    def until(self, ref: str, state: str) -> dict[str, Any]:
        """The machine, once it is in this state."""
        return eventually(lambda: (seen := self.machine(ref))["state"] == state and seen)

    def bill(self, ref: str) -> dict[str, Any]:
        return next(line for line in ok(self.admin.get("/admin/ledger"))["lines"] if line["ref"] == ref)

    def clean_up(self) -> None:
        """No faults, no switches, no script, no live machines."""
        for what in ("faults", "switches", "market"):
            ok(self.admin.delete(f"/admin/{what}"))
        for machine in self.machines():
            if machine["state"] != "ended":
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


def provider_at(
    url: str,
    *,
    program: str = IDLE,
    timeout_s: float = 10.0,
    logins: RegistryLogins | None = None,
    **account: str,
) -> ModalProvider:
    given = {"token_id": TOKEN_ID, "token_secret": TOKEN_SECRET} | account
    return ModalProvider(
        Account(server_url=url, **given),
        Catalogue(Shape(cpus=2, memory_gib=16)),
        clock=WallClock(),
        timeout_s=timeout_s,
        launch=lambda request: Launch(("sh", "-c", program), dict(request.bootstrap)),
        logins=logins,
    )


async def rent(provider: ModalProvider, offer_id: str = "T4:1", **fields: Any) -> Machine:
    """A machine of this offer, under a fresh label unless one is given."""
    return await provider.create(await wanted(provider, offer_id, **fields))


async def wanted(provider: ModalProvider, offer_id: str = "T4:1", **fields: Any) -> MachineRequest:
    offer: Offer = next(offer for offer in await provider.offers() if offer.offer_id == offer_id)
    given = {"label": new_label(), "image": IMAGE, "bootstrap": (), **fields}
    return MachineRequest(offer=offer, max_price_per_hour=offer.price_per_hour, **given)
