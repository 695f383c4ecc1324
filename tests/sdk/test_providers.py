"""Providers from the client and from the command line."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from allpass.cli import main as cli
from allpass.client import AsyncClient, Client

URL, KEY = "http://allpass.test", "ak_test"
NOW = datetime(2030, 1, 1, 12, tzinfo=UTC).isoformat()
PRICE = {"tier": "marketplace", "gpu_type": "A100", "offers": 7, "lowest": 700_000, "highest": 1_240_000}
FINE = {
    "name": "vast", "state": "ok", "why": None, "last_success_at": NOW, "last_failure": None, "quota_errors": 0,
    "refused_at": None, "paused_until": None, "machines": 3, "offers": 7, "prices": [PRICE],
    "barred_hosts": [],
}  # fmt: skip
REFUSED = {
    **FINE,
    "name": "modal",
    "state": "refused",
    "why": "it refuses our credentials (401)",
    "last_failure": {"call": "list", "code": "provider_auth_failed", "message": "401", "at": NOW},
    "refused_at": NOW,
    "quota_errors": 2,
    "prices": [],
}
GOOD = {"name": "vast", "code": None, "message": "the credentials are taken", "machines": 3, "offers": 7, "took_ms": 90}
BAD = {
    "name": "modal", "code": "provider_auth_failed", "message": "401", "machines": None, "offers": None, "took_ms": 12,
}  # fmt: skip


class Server:
    """Answers both questions, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[httpx.Request] = []
        self.checks: list[dict[str, Any]] = [GOOD]
        self.reach: list[dict[str, Any]] | None = None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if request.url.path == "/v1/providers/check":
            told: dict[str, Any] = {"checks": self.checks}
            return httpx.Response(200, json=told if self.reach is None else {**told, "reach": self.reach})
        return httpx.Response(200, json={"providers": [FINE, REFUSED]})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(
        "allpass.cli.providers.connect", lambda: Client(URL, KEY, transport=httpx.MockTransport(server))
    )
    return server


def call(*words: str) -> Result:
    return CliRunner().invoke(cli.app, list(words))


async def test_both_clients_ask_the_same(server: Server) -> None:
    """A check is a write with a key of its own; the list is a read."""
    with Client(URL, KEY, transport=httpx.MockTransport(server)) as client:
        assert [one.state for one in client.providers()] == ["ok", "refused"]
        assert client.check_providers()[0].code is None
    async with AsyncClient(URL, KEY, transport=httpx.MockTransport(server)) as awaited:
        assert [one.name for one in await awaited.providers()] == ["vast", "modal"]
        assert (await awaited.check_providers())[0].machines == 3
    assert [request.method for request in server.asked] == ["GET", "POST", "GET", "POST"]
    assert all("idempotency-key" in request.headers for request in server.asked if request.method == "POST")


def test_the_table_says_how_each_is_doing(server: Server) -> None:
    """State, machines, price range, quota errors, last failure; programs get the objects."""
    lines = call("providers").stdout.splitlines()
    vast, modal = (next(line for line in lines if line.startswith(name)) for name in ("vast", "modal"))
    assert all(part in vast for part in ("ok", "A100 $0.70/h to $1.24/h"))
    assert all(part in modal for part in ("refused", "list provider_auth_failed"))
    assert [one["name"] for one in json.loads(call("providers", "--json").stdout)] == ["vast", "modal"]


def test_hosts_that_failed_are_named_below_the_table(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a person, the first few of them, each with the time that is left; nothing where there are none."""
    monkeypatch.setattr("allpass.cli.screen.is_interactive", lambda _stream=None: True)
    until = (datetime.now(UTC) + timedelta(hours=6, minutes=30)).isoformat()
    hosts = [{"host": str(number), "failures": 1, "until": until} for number in range(6)]
    monkeypatch.setitem(FINE, "barred_hosts", hosts)
    told = call("providers").stderr
    assert "vast: 6 hosts that failed are left alone: 0 for 6h" in told
    assert "4 for 6h" in told
    assert "5 for" not in told
    monkeypatch.setitem(FINE, "barred_hosts", hosts[:1])
    assert "vast: 1 host that failed is left alone: 0 for 6h" in call("providers").stderr
    monkeypatch.setitem(FINE, "barred_hosts", [])
    assert "left alone" not in call("providers").stderr


def test_a_check_fails_when_credentials_are_not_taken(server: Server) -> None:
    """Exit code 0 when all are taken, 1 naming those that are not; the answers are printed in both cases."""
    assert call("providers", "check").exit_code == 0
    server.checks = [GOOD, BAD]
    failed = call("providers", "check")
    assert failed.exit_code == 1
    assert "taken" in failed.stdout
    assert "provider_auth_failed" in failed.stdout
    assert "not usable now: modal" in failed.stderr
    assert [one["name"] for one in json.loads(call("providers", "check", "--json").stdout)] == ["vast", "modal"]


def _met(name: str, verdict: str) -> dict[str, str]:
    return {"name": name, "verdict": verdict, "code": "some_code", "message": f"{name} was met", "fix": "mend it"}


def test_the_way_to_the_service_is_asked_for_by_name(server: Server) -> None:
    """It takes half a minute, so it is not asked for otherwise; what fails there fails the check."""
    call("providers", "check")
    assert "reach" not in str(server.asked[-1].url)
    server.reach = [_met("public URL", "ok"), _met("store", "warn")]
    fine = call("providers", "check", "--reach")
    assert server.asked[-1].url.params["reach"] == "true"
    assert fine.exit_code == 0
    assert "store was met -> mend it" in " ".join(fine.stdout.split())
    server.reach = [_met("public URL", "ok"), _met("store", "fail")]
    failed = call("providers", "check", "--reach", "--json")
    assert failed.exit_code == 1
    assert "not usable now: store" in failed.stderr
    assert [one["verdict"] for one in json.loads(failed.stdout)["reach"]] == ["ok", "fail"]


async def test_a_server_of_the_release_before_says_nothing_of_the_way(server: Server) -> None:
    """Its answer is read all the same, by both clients."""
    assert call("providers", "check", "--reach").exit_code == 0
    async with AsyncClient(URL, KEY, transport=httpx.MockTransport(server)) as awaited:
        assert (await awaited.check_service()).reach == []
