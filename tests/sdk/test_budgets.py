"""`allpass budget`, and budgets in the SDK."""

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
from allpass.errors import InvalidInput
from tests.sdk.fake_service import KEY, NOW, FakeService, json_of, ok, served

KEYS = [("key_1", "ci"), ("key_2", "twice"), ("key_3", "twice")]


class WithBudgets(FakeService):
    """Keeps what is set, one for each scope, key, provider and period."""

    def __init__(self) -> None:
        super().__init__()
        self.budgets: dict[tuple[Any, ...], dict[str, Any]] = {}

    def _route(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/keys":
            plain = {"prefix": "ak_1", "scopes": ["submit"], "created_at": NOW, "expires_at": None}
            plain |= {"last_used_at": None, "revoked_at": None}
            return ok({"data": [{"id": one, "name": name, **plain} for one, name in KEYS], "next_cursor": None})
        if request.url.path == "/v1/budgets" and request.method == "GET":
            return ok({"data": list(self.budgets.values()), "next_cursor": None})
        if request.url.path == "/v1/budgets":
            return ok(self._set(json_of(request)))
        if request.url.path.startswith("/v1/budgets/") and request.method == "DELETE":
            (whose,) = [key for key, one in self.budgets.items() if request.url.path.endswith(one["id"])]
            return ok(self.budgets.pop(whose))
        return super()._route(request)

    def _set(self, body: dict[str, Any]) -> dict[str, Any]:
        whose = tuple(body[name] for name in ("scope", "key_id", "provider", "period"))
        amount = round(body["amount_usd"] * 1_000_000)
        spent = 4_120_000
        state = "used_up" if spent >= amount else "near" if spent * 10 >= amount * 8 else "open"
        told = {"amount": amount, "spent": spent, "left": max(0, amount - spent), "foreseen": 9_000_000, "state": state}
        told |= {"begins_at": NOW, "ends_at": NOW, "set_by": "key_1", "set_at": NOW}
        named = dict(zip(("scope", "key_id", "provider", "period"), whose, strict=True))
        self.budgets[whose] = {"id": f"bud_{len(self.budgets)}", **named, **told}
        return self.budgets[whose]


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WithBudgets]:
    service = WithBudgets()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with served(service) as url:
        monkeypatch.setenv("ALLPASS_URL", url)
        monkeypatch.setenv("ALLPASS_API_KEY", KEY)
        yield service


def call(*argv: str) -> Result:
    return CliRunner().invoke(cli.app, ["budget", *argv])


def test_budgets_are_set_shown_and_removed(live: WithBudgets) -> None:
    """Each is named as it was set; what is used up already is said at once."""
    assert call().exit_code == 0  # and nothing to show
    assert "the project: at most $20.00 per day" in call("set", "--period", "day", "--amount", "20").stdout
    at_vast = call("set", "--period", "hour", "--amount", "$1", "--provider", "vast", "--key", "ci")
    assert "the project, key_1, at vast: at most $1.00 per hour" in at_vast.stdout
    assert "$4.12 is spent already: its jobs pause, or wait, until" in at_vast.stderr
    assert call("set", "--period", "month", "--amount", "0", "--installation").exit_code == 0
    told = call().stdout
    for word in ("the project, key_1, at vast", "all projects", "$4.12", "$20.00", "$9.00", "used up", "open"):
        assert word in told
    assert len(json.loads(call("--json").stdout)) == 3
    gone = call("remove", "--period", "hour", "--provider", "vast", "--key", "key_1")
    assert "the project, key_1, at vast: $1.00 per hour   removed" in gone.stdout
    assert call("remove", "--period", "month", "--installation", "--json").exit_code == 0
    assert [one["period"] for one in live.budgets.values()] == ["day"]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (("set", "--period", "week", "--amount", "1"), "'week' is not one of: hour, day, month"),
        (("set", "--period", "day", "--amount", "much"), "'much' is not an amount in dollars"),
        (("set", "--period", "day", "--amount", "-1"), "'-1' is not more than nothing"),
        (("set", "--period", "day", "--amount", "1", "--key", "nobody"), "no key has the name 'nobody'"),
        (("set", "--period", "day", "--amount", "1", "--key", "twice"), "2 keys have the name 'twice'"),
        (("set", "--period", "day", "--amount", "."), "'.' is not an amount in dollars"),
        (("remove", "--period", "day"), "there is no such budget"),
        (("remove", "--period", "year"), "'year' is not one of"),
    ],
)
def test_what_cannot_be_meant_is_told(live: WithBudgets, wrong: tuple[str, ...], told: str) -> None:
    """With what would be right; nothing is written."""
    refused = call(*wrong)
    assert refused.exit_code == 2
    assert told in " ".join(refused.stderr.split())
    assert live.budgets == {}


@pytest.mark.parametrize(
    ("written", "micros"), [("0", 0), ("$0.00", 0), (".5", 500_000), ("1,000", 10**9), ("2 USD", 2 * 10**6)]
)
def test_amounts_are_written_as_everywhere(live: WithBudgets, written: str, micros: int) -> None:
    """Nothing is an amount, too: then nothing may be spent."""
    stored = call("set", "--period", "day", "--amount", written, "--json")
    assert json.loads(stored.stdout)["amount"] == micros


async def test_both_clients_have_budgets(live: WithBudgets) -> None:
    """The same methods; what is no budget is refused before it is sent."""
    with Client() as client:
        first = client.set_budget("day", 20.0, provider="vast")
        assert (first.amount, first.provider, first.scope) == (20_000_000, "vast", "project")
        assert [one.id for one in client.budgets()] == [first.id]
        with pytest.raises(InvalidInput, match="amount_usd"):
            client.set_budget("day", -1.0)
        with pytest.raises(InvalidInput, match="period"):
            client.set_budget("week", 1.0)  # type: ignore[arg-type]  # as a user may
    async with AsyncClient() as client:
        assert (await client.set_budget("month", 0.0, scope="installation")).state == "used_up"
        assert len([one async for one in client.budgets()]) == 2
        assert (await client.remove_budget(first.id)).id == first.id
    assert [one["period"] for one in live.budgets.values()] == ["month"]
