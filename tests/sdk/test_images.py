"""`allpass providers prepare`, and the client's calls behind it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from allpass.cli import main as cli
from allpass.client import AsyncClient, Client
from allpass.errors import InvalidInput
from tests.sdk.test_providers import FINE, KEY, URL

NOW = datetime.now(UTC)
IMAGE = "lab/train:7"


def build(state: str, **changes: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(("ready_at", "took_ms", "why", "log", "again_at"))
    return {"provider": "modal", "image": IMAGE, "state": state, "since": NOW.isoformat(), "failures": 0} | (
        nothing | changes
    )


WANTED, READY = build("wanted"), build("ready", took_ms=90_000)
BUILDING = build("building", ready_at=(NOW + timedelta(days=2)).isoformat())
FAILED = build(
    "failed",
    failures=1,
    why="no such tag; compare it with the registry",
    log="Step 1\n\x1b[31mmanifest unknown",
    again_at=(NOW + timedelta(days=2)).isoformat(),
)


class Server:
    """Each answer in turn; the last one for good."""

    def __init__(self) -> None:
        self.answers: list[list[dict[str, Any]]] = [[READY]]
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if request.url.path == "/v1/providers":
            return httpx.Response(200, json={"providers": [{**FINE, "images": self.answers[0]}]})
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return httpx.Response(200, json={"images": answer})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(
        "allpass.cli.providers.connect", lambda: Client(URL, KEY, transport=httpx.MockTransport(server))
    )
    monkeypatch.setattr("allpass.cli.providers._LOOK_S", 0.0)
    monkeypatch.setattr("allpass.cli.screen.is_interactive", lambda _stream=None: True)
    return server


def call(*words: str) -> Result:
    return CliRunner().invoke(cli.app, ["providers", *words])


def test_progress_is_told_until_the_image_is_ready(server: Server) -> None:
    """Each state once, with the time to go."""
    server.answers = [[WANTED], [WANTED], [BUILDING], [BUILDING], [READY]]
    done = call("prepare", IMAGE)
    assert done.exit_code == 0, done.output
    told = [line for line in done.stderr.splitlines() if line.startswith("modal: ")]
    assert told[0] == f"modal: is about to build {IMAGE}"
    assert told[1].startswith(f"modal: builds {IMAGE}, about ")
    assert told[2:] == [f"modal: has built {IMAGE}: machines can run it"]
    assert json.loads(server.asked[0].content) == {"image": IMAGE, "provider": None}
    assert dict(server.asked[1].url.params) == {"image": IMAGE}


def test_a_build_that_fails_says_why_and_what_to_do(server: Server) -> None:
    """The reason, the builder's last lines without what steers a terminal, the next command; and a code for scripts."""
    server.answers = [[BUILDING], [FAILED]]
    failed = call("prepare", IMAGE)
    assert failed.exit_code == 1
    said = " ".join(failed.output.split())
    assert "could not build lab/train:7: no such tag; compare it with the registry; tried again in 1d" in said
    assert "  Step 1" in failed.output
    assert "manifest unknown" in failed.output
    assert "\x1b" not in failed.output
    assert f"allpass providers prepare {IMAGE}" in failed.output


def test_it_can_be_left_alone_and_read_by_programs(server: Server) -> None:
    """--no-wait asks once; --json is the objects as they are at the end."""
    server.answers = [[BUILDING]]
    left = call("prepare", IMAGE, "--no-wait", "--provider", "modal", "--json")
    assert left.exit_code == 0
    assert [one["state"] for one in json.loads(left.stdout)] == ["building"]
    assert len(server.asked) == 1
    assert json.loads(server.asked[0].content)["provider"] == "modal"


def test_where_no_provider_builds_it_says_so(server: Server) -> None:
    """And does not wait for ever."""
    server.answers = [[]]
    done = call("prepare", IMAGE)
    assert done.exit_code == 0
    assert "no provider here builds images ahead" in done.output


def test_the_table_of_providers_tells_of_builds_that_are_not_done(server: Server) -> None:
    """Those that are ready are no news."""
    server.answers = [[BUILDING, READY]]
    lines = call().output.splitlines()
    assert next(line for line in lines if line.startswith("vast: ")).startswith(f"vast: builds {IMAGE}, about ")
    assert "has built" not in "\n".join(lines)


async def test_both_clients_ask_the_same(server: Server) -> None:
    """A name that is none is refused before anything is sent."""
    with Client(URL, KEY, transport=httpx.MockTransport(server)) as client:
        assert client.prepare_image(IMAGE)[0].state == client.image_builds(IMAGE)[0].state == "ready"
        with pytest.raises(InvalidInput, match="image: 'two words' is refused"):
            client.prepare_image("two words")
    async with AsyncClient(URL, KEY, transport=httpx.MockTransport(server)) as awaited:
        assert (await awaited.prepare_image(IMAGE, provider="modal"))[0].provider == "modal"
        assert (await awaited.image_builds())[0].took_ms == 90_000
    assert [request.method for request in server.asked] == ["POST", "GET", "POST", "GET"]
