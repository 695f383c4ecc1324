"""`allpass model-names` and the clients' part of it: what is asked, and what is shown."""

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
from tests.sdk.fake_service import KEY, FakeService, json_of, ok, served

START = {"davinci-002": "Qwen/Qwen2.5-1.5B", "gpt-4o-mini": "Qwen/Qwen2.5-7B-Instruct"}


class NamingService(FakeService):
    """The routes of names of models, on top of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.own: dict[str, str | None] = {}

    def told(self, name: str) -> dict[str, Any]:
        model = self.own[name] if name in self.own else START.get(name)
        source = "owner" if name in self.own else "start"
        return {"name": name, "model": model, "source": source, "from_start": START.get(name)}

    def _route(self, request: httpx.Request) -> httpx.Response:
        base, _, name = request.url.path.partition("/v1/model-names")
        if base or not request.url.path.startswith("/v1/model-names"):
            return super()._route(request)
        if not name:
            return ok({"data": [self.told(one) for one in sorted({*START, *self.own})], "next_cursor": None})
        if request.method == "PUT":
            self.own[name[1:]] = json_of(request)["model"]
        else:
            self.own.pop(name[1:], None)
        return ok(self.told(name[1:]))


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NamingService]:
    service = NamingService()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with served(service) as url:
        monkeypatch.setenv("ALLPASS_URL", url)
        monkeypatch.setenv("ALLPASS_API_KEY", KEY)
        yield service


def call(*words: str) -> Result:
    return CliRunner().invoke(cli.app, ["model-names", *words])


def test_names_are_listed_and_changed(live: NamingService) -> None:
    """Each answer says what the name means now."""
    assert call("set", "gpt-4o-mini", "org/name").stdout == "gpt-4o-mini   means org/name\n"
    assert call("remove", "davinci-002").stdout == "davinci-002   is not known any more\n"
    lines = [line.split() for line in call().stdout.splitlines()]
    assert lines[1:] == [["davinci-002", "not", "known", "any", "more", "owner"], ["gpt-4o-mini", "org/name", "owner"]]
    assert call("reset", "gpt-4o-mini").stdout == f"gpt-4o-mini   means {START['gpt-4o-mini']}\n"
    told = json.loads(call("--json").stdout)
    assert [one["source"] for one in told] == ["owner", "start"]
    assert json.loads(call("set", "ours", "org/name", "--json").stdout)["from_start"] is None


def test_a_person_is_told_the_way_back(live: NamingService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allpass.cli.screen.is_interactive", lambda _stream=None: True)
    told = call("set", "gpt-4o-mini", "org/name")
    assert "back to Qwen/Qwen2.5-7B-Instruct: allpass model-names reset gpt-4o-mini" in told.output
    assert "allpass model-names reset ours" in call("set", "ours", "org/name").output


def test_what_is_no_open_model_is_refused_before_anything_is_sent(live: NamingService) -> None:
    refused = call("set", "gpt-4o-mini", "gpt-5")
    assert isinstance(refused.exception, InvalidInput) or refused.exit_code == 2
    assert live.own == {}


async def test_both_clients_change_names(live: NamingService) -> None:
    with Client() as client:
        assert client.set_model_name("gpt-4o-mini", "org/name").model == "org/name"
        assert [one.name for one in client.model_names()] == ["davinci-002", "gpt-4o-mini"]
        with pytest.raises(InvalidInput, match="'gpt-5' is not an open model"):
            client.set_model_name("gpt-4o-mini", "gpt-5")
    async with AsyncClient() as client:
        assert (await client.set_model_name("davinci-002", None)).model is None
        assert [one.model async for one in client.model_names()] == [None, "org/name"]
        assert (await client.reset_model_name("davinci-002")).source == "start"
