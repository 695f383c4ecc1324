"""Prices with a date, from the client and from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from allpass.cli import main as cli
from allpass.client import AsyncClient, Client
from allpass.errors import InvalidInput
from tests.sdk.test_providers import FINE

URL, KEY = "http://allpass.test", "ak_test"
NOW = "2026-11-21T12:00:00Z"
PRICES = "/v1/providers/modal/prices"


def price(name: str, **changes: Any) -> dict[str, Any]:
    plain = {
        "name": name, "published": 3_949_200, "setting": None, "own": None, "set_at": None, "set_by": None,
        "used": 3_949_200, "source": "list", "as_of": "2026-05-07", "is_old": True,
    }  # fmt: skip
    return plain | changes


H100 = price("H100", own=3_650_000, used=3_650_000, source="owner", as_of="2026-11-20", is_old=False, set_at=NOW)
MEMORY = price("memory_gib", published=23_976, used=23_976)
SETTING = price("L4", setting=700_000, used=700_000, source="setting", as_of=None, is_old=False)
GONE = price("H900", published=None, own=1, used=None, source=None, as_of=None, is_old=False)
LIST = {"as_of": "2026-05-07", "oldest": "2026-05-07", "is_old": True, "prices": [H100, MEMORY, SETTING, GONE]}
FRESH = LIST | {"oldest": "2026-11-20", "is_old": False, "prices": [H100]}
REFRESHED = {"code": None, "message": "its offers are as it lists them now", "offers": 7, "took_ms": 90}
FAR_OFF = {
    "code": "price_far_off", "param": "prices", "request_id": "req_1", "retryable": False,
    "message": "prices: more than three times the price in use, or less than a third of it (H100: $39.00/h, where "
    "$3.90/h is used now). Nothing was changed; send it again with confirm: true if it is meant",
}  # fmt: skip


class Server:
    """Answers as the service does, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[httpx.Request] = []
        self.listed: dict[str, Any] = LIST
        self.refreshed: list[dict[str, Any]] = [
            {"name": "modal", **REFRESHED, "price_list": LIST},
            {"name": "vast", **REFRESHED, "price_list": None},
        ]

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        path = request.url.path
        if path == "/v1/providers/refresh":
            return httpx.Response(200, json={"refreshes": self.refreshed})
        if path == "/v1/providers":
            return httpx.Response(200, json={"providers": [FINE | {"name": "modal", "price_list": self.listed}, FINE]})
        assert path == PRICES
        if request.method == "PUT" and self.body["prices"].get("H100") == 39 and not self.body["confirm"]:
            return httpx.Response(409, json={"error": FAR_OFF})
        return httpx.Response(200, json=self.listed)

    @property
    def body(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.asked[-1].content)
        return value


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    for module in ("prices", "providers"):
        monkeypatch.setattr(
            f"allpass.cli.{module}.connect", lambda: Client(URL, KEY, transport=httpx.MockTransport(server))
        )
    return server


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody sits at a terminal."""
    monkeypatch.setattr("allpass.cli.screen.is_interactive", lambda _stream=None: True)


def call(*words: str) -> Result:
    return CliRunner().invoke(cli.app, ["providers", *words])


async def test_both_clients_ask_the_same(server: Server) -> None:
    """Reads, changes of the same shape, and a refresh with a key of its own."""
    with Client(URL, KEY, transport=httpx.MockTransport(server)) as client:
        assert client.price_list("modal").is_old
        client.set_prices("modal", {"H100": 3.65}, as_of="2026-11-20")
        assert server.body == {"prices": {"H100": 3.65}, "as_of": "2026-11-20", "confirm": False}
        client.remove_prices("modal", ["H100", "cpu"])
        assert client.refresh_prices()[1].price_list is None
        with pytest.raises(InvalidInput, match=r"prices\.H100: input should be greater than 0"):
            client.set_prices("modal", {"H100": 0})
    async with AsyncClient(URL, KEY, transport=httpx.MockTransport(server)) as awaited:
        await awaited.price_list("modal")
        await awaited.set_prices("modal", {"H100": 3.65}, confirm=True)
        await awaited.remove_prices("modal")
        assert len(await awaited.refresh_prices()) == 2
    assert [request.method for request in server.asked] == ["GET", "PUT", "DELETE", "POST"] * 2
    assert [dict(request.url.params) for request in server.asked if request.method == "DELETE"] == [
        {"names": "H100,cpu"},
        {},
    ]
    assert all("idempotency-key" in request.headers for request in server.asked if request.method == "POST")


@pytest.mark.usefixtures("person")
def test_the_table_has_what_was_published_yours_and_what_is_used(server: Server) -> None:
    """To the last decimal, with whose it is and since when; old prices are warned of, with the command."""
    told = call("prices")
    rows = {line.split()[1]: line.split()[2:] for line in told.stdout.splitlines()[1:]}
    assert rows["H100"] == ["$3.9492", "$3.65", "$3.65", "yours", "2026-11-20"]
    assert rows["memory_gib"] == ["$0.023976", "-", "$0.023976", "list", "2026-05-07"]
    assert rows["L4"] == ["$3.9492", "-", "$0.70", "setting", "-"]
    assert rows["H900"] == ["-", "$0.000001", "-", "not", "in", "use", "-"]
    assert "modal: published prices of 2026-05-07" in told.stderr
    assert "warning: modal: some prices are of 2026-05-07, more than 180 days ago" in told.stderr
    assert "allpass providers prices modal NAME=DOLLARS" in told.stderr
    assert "come with every listing: vast" in told.stderr
    server.listed = FRESH
    assert "warning" not in call("prices", "modal").stderr


def test_programs_get_the_objects(server: Server) -> None:
    """Of all providers by name, null for those that tell their prices; of one the list itself."""
    every = json.loads(call("prices", "--json").stdout)
    assert every["vast"] is None
    assert every["modal"]["prices"][0]["own"] == 3_650_000
    assert json.loads(call("prices", "modal", "--json").stdout)["oldest"] == "2026-05-07"
    assert json.loads(call("prices", "--refresh", "--json").stdout)[0]["price_list"]["is_old"] is True
    assert json.loads(call("prices", "modal", "H100=3.65", "--json").stdout)["as_of"] == "2026-05-07"


def test_prices_are_set_as_they_are_typed(server: Server) -> None:
    """Dollars in any usual writing; the day is told on."""
    assert call("prices", "modal", "H100=$3.65", "cpu=0.1415", "--as-of", "2026-11-20").exit_code == 0
    assert server.body == {"prices": {"H100": 3.65, "cpu": 0.1415}, "as_of": "2026-11-20", "confirm": False}


def test_a_price_far_off_is_set_with_yes_only(server: Server) -> None:
    """The refusal says both prices, and what to type."""
    refused = call("prices", "modal", "H100=39")
    assert refused.exit_code == 1
    assert "H100: $39.00/h, where $3.90/h is used now" in refused.stderr
    assert "--yes" in refused.stderr
    assert "confirm" not in refused.stderr
    assert call("prices", "modal", "H100=39", "--yes").exit_code == 0
    assert server.body["confirm"] is True


@pytest.mark.parametrize(
    ("name", "content", "day"),
    [
        ("own.json", '{"H100": 3.65, "cpu": "$0.1415"}', None),
        ("own.json", '{"as_of": "2026-11-20", "prices": {"H100": 3.65, "cpu": 0.1415}}', "2026-11-20"),
        ("own.csv", "name,usd_per_hour\nH100,3.65\n\ncpu,$0.1415\n", None),
        ("own.csv", '\ufeffH100,"3.65"\r\ncpu, 0.1415\r\n', None),
    ],
)
def test_prices_are_read_from_a_file(server: Server, tmp_path: Path, name: str, content: str, day: str | None) -> None:
    """JSON as an object of prices, with or without a day, or CSV with or without a heading."""
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert call("prices", "modal", "--from", str(tmp_path / name)).exit_code == 0
    assert server.body == {"prices": {"H100": 3.65, "cpu": 0.1415}, "as_of": day, "confirm": False}
    call("prices", "modal", "L4=0.8", "--from", str(tmp_path / name), "--as-of", "2026-11-19")
    assert server.body["prices"] == {"H100": 3.65, "cpu": 0.1415, "L4": 0.8}
    assert server.body["as_of"] == "2026-11-19"
    twice = call("prices", "modal", "cpu=0.8", "--from", str(tmp_path / name))
    assert (twice.exit_code, "cpu has two prices" in twice.stderr) == (2, True)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "no JSON"),
        ('{"H100": NaN}', "'nan' is not an amount in dollars"),
        ('{"H100": -1}', "is not more than nothing"),
        ('{"H100": {"usd": 1}}', "is not an amount in dollars"),
        ('{"H100": 1, "H100": 2}', "H100 has two prices"),
        ('{"prices": 7}', "expected"),
        ("H100;3.65", "has 1 columns"),
        ("H100,cheap", "'cheap' is not an amount in dollars"),
        ("\n".join(f"gpu-{number},1" for number in range(20_000)), "20000 prices; at most 200"),
        ("x" * 1_000_001, "more than 1000000 bytes"),
        ('{"prices": ' + "[" * 200_000, "no JSON"),
        ("\ud800", "not UTF-8"),
    ],
)
def test_a_file_that_is_no_price_list_is_told(server: Server, tmp_path: Path, content: str, why: str) -> None:
    """With what is wrong and an example; nothing is asked of the service."""
    file = tmp_path / "own.prices"
    file.write_bytes(content.encode("utf-8", "surrogatepass"))
    told = call("prices", "modal", "--from", str(file))
    assert (told.exit_code, server.asked) == (2, [])
    assert why in told.stderr
    assert "allpass providers prices modal H100=3.95" in told.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("modal", "H100"),
        ("modal", "H100=0"),
        ("modal", "H100=nan"),
        ("modal", "H100=1", "H100=2"),
        ("H100=3.95",),
        ("--clear",),
        ("--from", "/nowhere/prices.json"),
        ("modal", "--from", "/nowhere/prices.json"),
        ("modal", "--refresh"),
        ("modal", "--clear", "--from", "/nowhere/prices.json"),
        ("modal", "--as-of", "2026-11-20"),
    ],
)
def test_what_makes_no_sense_is_told_before_anything_is_asked(server: Server, words: tuple[str, ...]) -> None:
    """Exit code 2, with an example."""
    told = call("prices", *words)
    assert (told.exit_code, server.asked) == (2, [])
    assert "allpass providers prices modal H100=3.95" in told.stderr


def test_what_was_set_is_taken_back(server: Server) -> None:
    """Of one provider: all, or by name."""
    assert call("prices", "modal", "--clear").exit_code == 0
    assert call("prices", "modal", "H100", "cpu", "--clear").exit_code == 0
    assert [(one.method, dict(one.url.params)) for one in server.asked] == [
        ("DELETE", {}),
        ("DELETE", {"names": "H100,cpu"}),
    ]


@pytest.mark.usefixtures("person")
def test_a_refresh_says_whom_there_is_nothing_to_ask(server: Server) -> None:
    """The date of the list and how to correct it; a company that fails makes the command fail, with all answers."""
    told = call("prices", "--refresh")
    assert told.exit_code == 0
    modal, vast = told.stdout.splitlines()[1:3]
    assert "of 2026-05-07" in modal
    assert "has no interface to ask for prices" in modal
    assert "its offers are as it lists them now" in vast
    assert "to correct its prices: allpass providers prices modal NAME=DOLLARS" in told.stderr
    server.refreshed[1] |= {"code": "provider_transient", "message": "502"}
    failed = call("prices", "--refresh")
    assert (failed.exit_code, "not asked: vast" in failed.stderr) == (1, True)
    assert "502" in failed.stdout


@pytest.mark.usefixtures("person")
def test_the_list_of_providers_warns_of_old_prices(server: Server) -> None:
    """Once for each provider; of a fresh list the date alone; nothing where prices come with every listing."""
    told = call().stderr
    assert told.count("warning: modal") == 1
    assert "vast: prices" not in told
    server.listed = FRESH
    told = call().stderr
    assert "warning" not in told
    assert "modal: prices of a list as of 2026-11-20 (allpass providers prices)" in told
