"""Usage, offers, searches and curves from the client, and the two commands about money."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from allpass.cli import main as cli
from allpass.client import AsyncClient, Client
from allpass.errors import InvalidInput
from allpass.wire.deadlines import LONGEST, parse_past

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
URL, KEY = "http://allpass.test", "ak_test"
LINES = [
    {"key": "app_1", "name": "LLM", "payer": "run", "cost": 4_000_000, "gpu_ms": 7_200_000},
    {"key": None, "name": None, "payer": "idle", "cost": 500_000, "gpu_ms": 360_000},
]
USAGE = {
    "group_by": "app", "from_at": None, "to_at": None, "lines": LINES, "cost": 4_600_000, "gpu_ms": 7_560_000,
    "rest": {"lines": 2, "cost": 100_000, "gpu_ms": 0}, "so_far": True, "open_nodes": 1,
}  # fmt: skip
OFFER = {
    "provider": "vast", "offer_id": "1", "tier": "marketplace", "gpu_type": "A100", "gpu_count": 2,
    "gpu_memory_bytes": 1, "cpus": 1, "memory_bytes": 1, "region": "", "price_per_hour": 1_400_000,
    "price_per_gpu_hour": 700_000, "startup_ms": 36_000, "seen_at": NOW.isoformat(),
}  # fmt: skip


class Server:
    """Answers the four questions, in pages of one, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[httpx.URL] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url)
        first = "cursor" not in request.url.params
        point = {"step": 1, "at": NOW.isoformat(), "values": {"loss": 1.0}}
        match = {"line": 1 if first else 7, "position": "0.0", "text": "loss"}
        pages: dict[str, Any] = {"offers": OFFER, "search": match, "metrics": point}
        kind = request.url.path.rsplit("/", 1)[-1]
        if kind == "usage":
            return httpx.Response(200, json=USAGE)
        if kind == "jobs":
            return httpx.Response(200, json={"data": [], "next_cursor": None})
        more = "next" if first and kind != "metrics" else None
        return httpx.Response(200, json={"data": [pages[kind]], "next_cursor": more})

    def query(self, number: int = -1) -> dict[str, str]:
        return {name: value for name, value in self.asked[number].params.items() if name != "limit"}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(URL, KEY, transport=httpx.MockTransport(server)) as client:
        yield client


def test_usage_is_asked_for_with_its_time(client: Client, server: Server) -> None:
    """Instants travel with their zone; one without is refused before anything is sent."""
    used = client.usage("label:team", since=NOW, until=NOW + timedelta(days=1))
    assert (used.cost, used.lines[0].name, used.so_far) == (4_600_000, "LLM", True)
    expected = {"group_by": "label:team", "from": "2030-01-01T12:00:00+00:00", "to": "2030-01-02T12:00:00+00:00"}
    assert server.query() == expected
    with pytest.raises(InvalidInput, match=r"since: .* no time zone"):
        client.usage(since=datetime(2030, 1, 1))
    assert len(server.asked) == 1


def test_usage_is_asked_for_of_one_job(client: Client, server: Server) -> None:
    """By how many GPUs it has had, for instance."""
    client.usage("size", job_id="job_1")
    assert server.query() == {"group_by": "size", "job": "job_1"}


def test_lists_walk_their_pages(client: Client, server: Server) -> None:
    """Offers and matches come from every page, with the same filters each time."""
    assert len(list(client.offers(gpu_type="A100", max_price=900_000))) == 2
    assert server.query() == {"gpu_type": "A100", "max_price": "900000", "cursor": "next"}
    assert [one.line for one in client.search_log("job_1", "loss", ignore_case=True)] == [1, 7]
    assert server.query() == {"q": "loss", "ignore_case": "true", "cursor": "next"}


def test_curves_are_one_answer(client: Client, server: Server) -> None:
    """Thinned out by the server, for the names asked for."""
    assert [one.step for one in client.metric_curves("job_1", max_points=8, names=["loss", "lr"])] == [1]
    assert server.query() == {"max_points": "8", "names": "loss,lr"}


def test_jobs_are_filtered_by_name_and_time(client: Client, server: Server) -> None:
    """As the server takes it."""
    assert list(client.jobs(name="tune", submitted_after=NOW, status="running,failed")) == []
    assert server.query() == {"name": "tune", "submitted_after": NOW.isoformat(), "status": "running,failed"}


async def test_the_async_client_asks_the_same(server: Server) -> None:
    """Same calls, same models."""
    async with AsyncClient(URL, KEY, transport=httpx.MockTransport(server)) as client:
        assert (await client.usage()).cost == 4_600_000
        assert len([one async for one in client.offers()]) == 2
        assert [one.line async for one in client.search_log("job_1", "x")] == [1, 7]
        assert len(await client.metric_curves("job_1")) == 1


@pytest.fixture
def wired(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The commands' client speaks to the server."""
    monkeypatch.setattr("allpass.cli.spending.connect", lambda: Client(URL, KEY, transport=httpx.MockTransport(server)))
    return server


def call(*words: str) -> Result:
    return CliRunner().invoke(cli.app, list(words))


def test_cost_prints_lines_that_add_up(wired: Server) -> None:
    """Each group with its payer, what was not listed, and a total that says whether it is final."""
    printed = call("cost", "--by", "app", "--since", "7d").stdout
    assert re.search("app_1 +LLM +run +[$]4.00", printed)
    assert "(idle machines)" in printed
    assert "(2 more)" in printed
    assert "total $4.60 for 2.10 GPU-hours so far (1 machine runs)" in printed
    assert wired.query()["group_by"] == "app"
    assert datetime.now(UTC) - datetime.fromisoformat(wired.query()["from"]) >= timedelta(days=7)
    assert json.loads(call("cost", "--json").stdout)["cost"] == 4_600_000
    assert "(3 more)" in call("cost", "-n", "1").stdout


def test_cost_by_size_is_in_the_order_of_sizes(wired: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no run held comes last; the job is asked for."""
    lines = [
        {"key": key, "name": None, "payer": payer, "cost": cost, "gpu_ms": 3_600_000}
        for key, payer, cost in (("4", "run", 3_000_000), ("16", "run", 5), ("1", "run", 9), (None, "idle", 7))
    ]
    monkeypatch.setitem(USAGE, "lines", lines)
    printed = call("cost", "--by", "size", "--job", "job_1").stdout
    found = [line.split()[0] for line in printed.splitlines() if line.strip()]
    assert found[:5] == ["GPUS", "1", "4", "16", "(idle"]
    assert wired.query() == {"group_by": "size", "job": "job_1"}


def test_offers_prints_prices_per_gpu(wired: Server) -> None:
    """Dollars for people, micro-dollars for programs."""
    printed = call("offers", "--gpu", "A100", "--max-price", "$0.90").stdout
    assert all(part in printed for part in ("2x A100", "$0.70/h", "$1.40/h", "36s", "vast"))
    assert wired.query(0) == {"gpu_type": "A100", "max_price": "900000"}
    assert len(json.loads(call("offers", "--json").stdout)) == 2
    assert "AS SPOT" not in printed


def test_offers_of_a_pool_say_what_a_spot_job_pays(wired: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a column that is there only where some pool has a share for spot."""
    monkeypatch.setitem(OFFER, "spot_price_per_hour", 350_000)
    heading, first, *_ = call("offers").stdout.splitlines()
    assert "AS SPOT" in heading and "$0.35/h" in first


@pytest.mark.parametrize(
    "words", [("cost", "--since", "soon"), ("cost", "--since", "2999-01-01T00:00Z"), ("offers", "--max-price", "NaN")]
)
def test_wrong_words_are_told_before_anything_is_sent(wired: Server, words: tuple[str, ...]) -> None:
    """Exit code 2, the option, and an example."""
    result = call(*words)
    assert result.exit_code == 2
    assert words[1] in result.stderr
    assert wired.asked == []


@given(hours=st.integers(1, 10_000))
def test_a_past_is_as_long_ago_as_it_says(hours: int) -> None:
    """In every spelling of a duration; nothing is longer ago than the calendar can hold."""
    assert parse_past(f"{hours}h", now=NOW) == parse_past(f"PT{hours}H", now=NOW) == NOW - timedelta(hours=hours)
    assert parse_past("2030-01-01T11:00:00Z", now=NOW) == NOW - timedelta(hours=1)
    assert parse_past("9999999d", now=NOW) == NOW - LONGEST


def test_offers_at_prices_of_a_list_tell_its_day(wired: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the table, once for each provider; where it is long ago, as a warning with the command that corrects it."""
    monkeypatch.setattr("allpass.cli.screen.is_interactive", lambda _stream=None: True)
    assert "prices of a list" not in call("offers").stderr
    monkeypatch.setitem(OFFER, "price_as_of", "2026-05-07")
    assert call("offers").stderr.count("vast: prices of a list as of 2026-05-07 (allpass providers prices)") == 1
    monkeypatch.setitem(OFFER, "price_is_old", True)
    told = call("offers").stderr
    assert told.count("warning: vast: some prices are of 2026-05-07") == 1
    assert "allpass providers prices vast NAME=DOLLARS" in told
    assert json.loads(call("offers", "--json").stdout)[0]["price_is_old"] is True
