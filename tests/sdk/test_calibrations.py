"""`allpass calibrations` and the client's part of it: what is asked, and what is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from allpass.cli import main as cli
from allpass.client import AsyncClient, Client
from tests.sdk.fake_service import KEY, NOW, FakeService, json_of, ok, served

KNOWN: dict[str, Any] = {
    "id": "cal_1", "family": "llama", "method": "qlora", "kernel": "flash/full", "gpu_type": "a100",
    "versions": "peft 0.13, torch 2.5", "runs": 12, "ratio": 1.25, "fragmentation": 0.07,
    "overhead_bytes": 700_000_000, "weight": 0.8, "lowers": True, "enabled": True, "updated_at": NOW,
}  # fmt: skip


class CalibratedService(FakeService):
    """The routes of calibrations, on top of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.known = dict(KNOWN)

    def _route(self, request: httpx.Request) -> httpx.Response:
        route = f"{request.method} {request.url.path}"
        if route == "GET /v1/calibrations":
            return ok({"data": [self.known]})
        if route == "PATCH /v1/calibrations/cal_1":
            self.known |= json_of(request)
        return ok(self.known) if request.url.path == "/v1/calibrations/cal_1" else super()._route(request)


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CalibratedService]:
    service = CalibratedService()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with served(service) as url:
        monkeypatch.setenv("ALLPASS_URL", url)
        monkeypatch.setenv("ALLPASS_API_KEY", KEY)
        yield service


def call(*words: str) -> Result:
    return CliRunner().invoke(cli.app, ["calibrations", *words])


def test_the_list_says_how_much_each_counts(live: CalibratedService) -> None:
    """Kind, runs, ratio, weight and state; as JSON the objects of the API."""
    told = call("list").stdout
    for part in ("cal_1", "llama qlora, flash/full", "a100", "12", "1.25", "80%", "on"):
        assert part in told
    assert json.loads(call("list", "--json").stdout)[0]["id"] == "cal_1"


def test_one_says_what_it_does(live: CalibratedService) -> None:
    """The factor it has on predictions; or that it has too few runs to lower them, or is off."""
    assert "taken times 1.20" in call("show", "cal_1").stdout
    live.known |= {"ratio": 0.8, "lowers": False}
    assert "too few runs to let a job on less memory" in call("show", "cal_1").stdout
    live.known |= {"enabled": False}
    assert "switched off: predictions go by the model alone" in call("show", "cal_1").stdout


def test_it_is_switched_off_and_on(live: CalibratedService) -> None:
    """Each says what it did and how to undo it."""
    off = call("disable", "cal_1")
    assert (off.exit_code, live.known["enabled"]) == (0, False)
    assert "cal_1   off   undo: allpass calibrations enable cal_1" in off.stdout
    assert json.loads(call("enable", "cal_1", "--json").stdout)["enabled"] is True


async def test_the_client_switches_it(live: CalibratedService) -> None:
    """Both clients speak the same calls."""
    with Client() as client:
        assert client.get_calibration("cal_1").ratio == 1.25
        assert client.switch_calibration("cal_1", enabled=False).enabled is False
    async with AsyncClient() as client:
        assert (await client.get_calibration("cal_1")).enabled is False
        assert (await client.switch_calibration("cal_1", enabled=True)).enabled is True
