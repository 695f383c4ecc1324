"""An account at the emulated Lambda: our adapter for it, and its bare API."""

from __future__ import annotations

from typing import Any

import httpx

from app.ports.provider import MachineRequest
from providers.lambda_cloud.adapter import LambdaProvider
from providers.lambda_cloud.options import LambdaOptions
from tests.providers.cloud_process import WallClock, ok
from tests.providers.emulators.process import KEY, EmulatorProcess

SCRIPT = "#!/bin/sh\necho up\necho ready\nexec sleep 600\n"


class NoWait:
    """A pace for tests: every turn at once."""

    def __init__(self) -> None:
        self.turns: list[tuple[str, int]] = []

    async def turn(self, lane: str, every_ms: int) -> None:
        self.turns.append((lane, every_ms))


def idle_script(_: MachineRequest) -> str:
    """Instead of our bootstrap."""
    return SCRIPT


def provider(url: str, *, key: str = KEY, pace: NoWait | None = None, **options: Any) -> LambdaProvider:
    given = LambdaOptions(api_key=key, ssh_key="allpass", base_url=url, **{"timeout_s": 10.0, **options})
    return LambdaProvider(given, clock=WallClock(), pace=pace or NoWait(), bootstrap=idle_script)


class LambdaAccount:
    """The bare API, as any customer sees it."""

    def __init__(self, emulator: EmulatorProcess) -> None:
        headers = {"Authorization": f"Bearer {KEY}"}
        self.http = httpx.Client(base_url=f"{emulator.url}/api/v1", headers=headers, trust_env=False, timeout=30)

    def launch(self, **fields: Any) -> httpx.Response:
        body = {
            "region_name": "us-east-1",
            "instance_type_name": "gpu_1x_a10",
            "ssh_key_names": ["allpass"],
            "name": "somebody-elses",
            "user_data": SCRIPT,
        }
        given = {name: value for name, value in (body | fields).items() if value is not None}
        return self.http.post("/instance-operations/launch", json=given)

    def launched(self, **fields: Any) -> str:
        """The id of a new instance."""
        return str(ok(self.launch(**fields))["data"]["instance_ids"][0])

    def instances(self) -> list[dict[str, Any]]:
        return list(ok(self.http.get("/instances"))["data"])

    def instance(self, ref: str) -> dict[str, Any]:
        return dict(ok(self.http.get(f"/instances/{ref}"))["data"])

    def terminate(self, *refs: str) -> httpx.Response:
        return self.http.post("/instance-operations/terminate", json={"instance_ids": list(refs)})

    def types(self) -> dict[str, Any]:
        return dict(ok(self.http.get("/instance-types"))["data"])

    def close(self) -> None:
        self.http.close()


def refused(response: httpx.Response, status: int, code: str) -> str:
    """That it was refused so; the message."""
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code), response.text
    return str(error["message"])
