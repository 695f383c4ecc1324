"""An account at the emulated RunPod: our adapter for it, and its bare API."""

from __future__ import annotations

from typing import Any

import httpx

from app.ports.provider import MachineRequest
from providers.runpod.adapter import RunpodProvider
from providers.runpod.options import RunpodOptions
from tests.providers.cloud_process import WallClock, ok
from tests.providers.emulators.process import KEY, EmulatorProcess
from tests.providers.lambda_account import NoWait

SCRIPT = "echo up\necho ready\nexec sleep 600\n"
ARGS = "/bin/sh -c 'echo up; exec sleep 600'"
A6000 = "NVIDIA RTX A6000"


def idle_script(_: MachineRequest) -> str:
    """Instead of our bootstrap."""
    return SCRIPT


def provider(url: str, *, key: str = KEY, bootstrap: Any = idle_script, **options: Any) -> RunpodProvider:
    pace = options.pop("pace", None) or NoWait()
    given = {"timeout_s": 10.0, "gpu_counts": (1, 2), "create_grace_ms": 1_000, **options}
    return RunpodProvider(RunpodOptions(key, url, **given), clock=WallClock(), pace=pace, bootstrap=bootstrap)


class RunpodAccount:
    """The bare API, as any customer sees it."""

    def __init__(self, emulator: EmulatorProcess, key: str = KEY) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        self.http = httpx.Client(base_url=f"{emulator.url}/v2", headers=headers, trust_env=False, timeout=30)

    def create(self, **fields: Any) -> httpx.Response:
        body = {"name": "somebody-elses", "image": "busybox", "args": ARGS, "gpu": {"id": A6000}, **fields}
        return self.http.post("/pods", json={name: value for name, value in body.items() if value is not None})

    def created(self, **fields: Any) -> str:
        """The id of a new pod."""
        response = self.create(**fields)
        assert response.status_code == 201, response.text
        return str(response.json()["id"])

    def pods(self) -> list[dict[str, Any]]:
        return list(ok(self.http.get("/pods"))["pods"])

    def pod(self, ref: str) -> dict[str, Any]:
        return dict(ok(self.http.get(f"/pods/{ref}")))

    def act(self, ref: str, action: str) -> httpx.Response:
        return self.http.post(f"/pods/{ref}/action", json={"action": action})

    def gpus(self, **params: Any) -> dict[str, dict[str, Any]]:
        """The catalog's rows by id."""
        asked = {"include": "AVAILABILITY", "product": "POD", **params}
        return {row["id"]: row for row in ok(self.http.get("/catalog/gpus", params=asked))["gpus"]}

    def close(self) -> None:
        self.http.close()


def refused(response: httpx.Response, status: int) -> dict[str, Any]:
    """The problem document of a refusal."""
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == status
    assert problem["title"]
    return dict(problem)
