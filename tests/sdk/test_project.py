"""`allpass project` and the client's part of it: what is asked, what is changed, and what is said of idle time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from allpass.cli import main as cli
from allpass.client import AsyncClient, Client
from tests.sdk.fake_service import KEY, NOW, FakeService, json_of, ok, served


class OneProject(FakeService):
    """A project that can be changed, and its bill."""

    def __init__(self) -> None:
        super().__init__()
        self.project: dict[str, Any] = {"id": "proj_1", "name": "default", "created_at": NOW, "ahead": True}
        self.idle = 460_000

    def _route(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/project":
            self.project |= json_of(request) if request.method == "PATCH" else {}
            return ok(self.project)
        if request.url.path == "/v1/usage":
            lines = [{"key": None, "payer": "idle", "cost": self.idle, "gpu_ms": 1}] if self.idle else []
            rest = {"lines": 1, "cost": 1_000_000 - self.idle, "gpu_ms": 1}
            sums = {"cost": 1_000_000, "gpu_ms": 2, "idle_cost": self.idle, "so_far": False, "open_nodes": 0}
            return ok({"group_by": "job", "from_at": None, "to_at": None, "lines": lines, "rest": rest, **sums})
        return super()._route(request)


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OneProject]:
    service = OneProject()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("allpass.cli.screen.is_interactive", lambda _stream=None: True)
    with served(service) as url:
        monkeypatch.setenv("ALLPASS_URL", url)
        monkeypatch.setenv("ALLPASS_API_KEY", KEY)
        yield service


def call(*words: str) -> Result:
    return CliRunner().invoke(cli.app, list(words))


def test_the_switch_is_shown_and_turned(live: OneProject) -> None:
    """Each answer says how to have it the other way."""
    assert "while jobs come often   (change: allpass project --no-ahead)" in call("project").stdout
    assert "never   (change: allpass project --ahead)" in call("project", "--no-ahead").stdout
    assert live.project["ahead"] is False
    assert '"ahead": true' in call("project", "--ahead", "--json").stdout


def test_the_bill_says_how_much_stood_idle_and_how_to_change_that(live: OneProject) -> None:
    """In dollars and as a share; the way out only where it is not taken already; nothing where nothing idled."""
    told = call("cost").output
    assert "of that $0.46 (46%) for machines that stood idle" in told
    assert "allpass project --no-ahead" in told
    live.project["ahead"] = False
    assert "--no-ahead" not in call("cost").output
    live.idle = 0
    assert "stood idle" not in call("cost").output


async def test_both_clients_change_it(live: OneProject, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client() as client:
        assert client.update_project(ahead=False).ahead is False
        assert client.project().name == "default"
    async with AsyncClient() as client:
        assert (await client.update_project(ahead=True)).ahead is True
        assert (await client.project()).ahead is True
