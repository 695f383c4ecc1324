"""`allpass pool` and what is told of a pool's price for spot jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from allpass.cli import main as cli
from allpass.client import AsyncClient, Client
from allpass.errors import InvalidInput
from tests.sdk.fake_service import KEY, NOW, FakeService, json_of, ok, problem, served


class OnePool(FakeService):
    """Pool `lab`, whose GPUs cost a dollar an hour."""

    def __init__(self) -> None:
        super().__init__()
        self.pool: dict[str, Any] = {
            **{"name": "lab", "launcher": "joined", "state": "open", "price_per_gpu_hour": 1_000_000, "preference": 0},
            **{"projects": [], "hours": "", "most_gpus": None, "labels": {}, "hosts": [], "drains_at": None},
            "created_at": NOW,
        }
        self.asked: dict[str, Any] = {}

    def _route(self, request: httpx.Request) -> httpx.Response:
        if not request.url.path.startswith("/v1/pools"):
            return super()._route(request)
        if request.method != "GET":
            self.asked = json_of(request)
            if request.url.path.endswith("/hosts/gone"):
                return problem(404, "not_found", "there is no host 'gone' in pool lab")
            if "/hosts/" in request.url.path:
                return ok(host_of(request.url.path.rpartition("/")[2], self.asked["labels"]))
            self.pool |= {
                name: value for name, value in self.asked.items() if name in ("spot_share", "name", "grace_s")
            }
        if request.url.path == "/v1/pools" and request.method == "GET":
            return ok({"data": [self.pool], "next_cursor": None})
        return ok(self.pool)


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OnePool]:
    service = OnePool()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with served(service) as url:
        monkeypatch.setenv("ALLPASS_URL", url)
        monkeypatch.setenv("ALLPASS_API_KEY", KEY)
        yield service


def call(*words: str) -> Result:
    return CliRunner().invoke(cli.app, list(words))


def test_what_spot_jobs_pay_is_settled_and_told_beside_the_price(live: OnePool) -> None:
    """An older service says nothing of it: then all pay the price."""
    assert "price      $1.00/h per GPU\n" in call("pool", "show", "lab").stdout
    made = call("pool", "create", "lab", "--price", "1", "--spot-share", "0.3")
    assert live.asked == {"name": "lab", "price_usd": 1.0, "spot_share": 0.3}
    assert "$1.00/h per GPU; spot jobs $0.30/h (0.3 of it)" in made.stdout
    assert "$1.00/h, spot $0.30/h" in call("pool", "list").stdout
    call("pool", "set", "lab", "--spot-share", "0")
    assert live.asked == {"spot_share": 0.0}
    assert "spot jobs $0.00/h (0 of it)" in call("pool", "show", "lab").stdout
    assert "spot" not in call("pool", "set", "lab", "--spot-share", "1").stdout


@pytest.mark.parametrize("share", ["1.01", "-0.1", "half", "nan", "inf", "", "30%", "9" * 400])
def test_what_is_no_share_is_refused_before_anybody_is_asked(live: OnePool, share: str) -> None:
    """With the option, the value and what would be one."""
    refused = call("pool", "set", "lab", "--spot-share", share)
    assert refused.exit_code == 2
    assert f"--spot-share: {share!r} is no share of the price" in " ".join(refused.output.split())
    assert live.asked == {}


def test_how_long_jobs_have_to_leave_is_settled_and_told(live: OnePool) -> None:
    """With a unit, or in seconds; `usual` takes it back; too short or too long is told before anybody is asked."""
    assert "grace" not in call("pool", "show", "lab").stdout
    assert "grace      5m 00s for jobs that leave for another one" in call("pool", "set", "lab", "--grace", "5m").stdout
    assert live.asked == {"grace_s": 300}
    call("pool", "create", "lab", "--grace", "45")
    assert live.asked == {"name": "lab", "grace_s": 45}
    call("pool", "set", "lab", "--grace", "usual")
    live.asked, settled = {}, live.asked
    assert settled == {"grace_s": None}
    for wrong in ("9s", "11m", "5", "soon", "-1s", "0"):
        refused = call("pool", "set", "lab", "--grace", wrong)
        assert (refused.exit_code, "--grace: " in refused.output) == (2, True), refused.output
    assert live.asked == {}


def test_quotas_are_of_gpus_or_of_whole_hosts_and_all_are_named_at_once(live: OnePool) -> None:
    call("pool", "set", "lab", "--quota", "research=4", "--quota", "team=2x8xA100", "--quota", "team=1x4xRTX 4090")
    hosts = [{"hosts": 2, "gpus": 8, "gpu_type": "A100"}, {"hosts": 1, "gpus": 4, "gpu_type": "RTX 4090"}]
    assert live.asked == {"quotas": {"research": 4}, "host_quotas": {"team": hosts}}
    live.pool["host_quotas"] = {"team": [{"hosts": 2, "gpus": 8, "gpu_type": "A100", "short_gpus": 0}]}
    call("pool", "set", "lab", "--quota", "none")
    assert live.asked == {"quotas": {}, "host_quotas": {}}
    call("pool", "set", "lab", "--quota", "research=4")
    assert live.asked == {"quotas": {"research": 4}, "host_quotas": {}}, "what is not named is none"
    call("pool", "set", "lab", "--most-gpus", "9")
    assert live.asked == {"most_gpus": 9}
    live.asked = {}
    for wrong in (["research"], ["research=x8xA100"], ["research=2x8x"], ["research=4", "research=5"], ["research=0x"]):
        refused = call("pool", "set", "lab", *(word for one in wrong for word in ("--quota", one)))
        assert (refused.exit_code, "--quota" in refused.output) == (2, True), refused.output
    assert live.asked == {}


def test_a_server_that_knows_no_quotas_of_hosts_takes_those_in_gpus_and_it_says_which_it_does_not(
    live: OnePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = live._route

    def older(request: httpx.Request) -> httpx.Response:
        if request.method != "GET" and "host_quotas" in json_of(request):
            told = "host_quotas: there is no such field; see the API reference for those that exist"
            return problem(422, "invalid_request", told, param="host_quotas")
        return route(request)

    monkeypatch.setattr(live, "_route", older)
    for words in (["create", "lab"], ["set", "lab"]):
        assert call("pool", *words, "--quota", "research=4").exit_code == 0
        assert live.asked["quotas"] == {"research": 4}
        live.asked = {}
        refused = call("pool", *words, "--quota", "research=4", "--quota", "team=2x8xA100")
        told = " ".join(refused.output.split())
        assert (refused.exit_code, live.asked) == (1, {})
        assert "this server knows no quotas of whole hosts: it is of an earlier release" in told
    assert call("pool", "set", "lab", "--quota", "none").exit_code == 0


async def test_both_clients_settle_it(live: OnePool) -> None:
    with Client() as client:
        assert client.create_pool("lab", price_usd=1.0, spot_share=0.25).spot_share == 0.25
        with pytest.raises(InvalidInput, match="spot_share: 2"):
            client.change_pool("lab", spot_share=2.0)
    async with AsyncClient() as client:
        assert (await client.change_pool("lab", spot_share=0.5)).spot_share == 0.5


def host_of(name: str, labels: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"id": "host_1", "name": name, "pool": "lab", "state": "ready", "gpus": [], "used": []}
    found |= {"cpus": 1, "memory_bytes": 1, "driver": None, "why": None, "joined_at": NOW, "heard_at": NOW}
    return found | {"labels": {key: value for key, value in labels.items() if value}, "leaves_at": None}


def test_hosts_are_labelled_each_by_itself(live: OnePool) -> None:
    """One that is not there keeps no other from its label, and the exit code says so."""
    done = call("pool", "label", "lab", "a", "gone", "b", "--label", "switch=leaf-3", "--remove", "rack")
    assert live.asked == {"labels": {"switch": "leaf-3", "rack": None}}
    assert (done.exit_code, done.stdout) == (1, "a   switch=leaf-3\nb   switch=leaf-3\n")
    assert "gone: there is no host 'gone' in pool lab" in done.output
    assert call("pool", "label", "lab", "gone", "--label", "switch=leaf-3").exit_code == 1
    assert call("pool", "label", "lab", "a", "--label", "switch=leaf-3").exit_code == 0


@pytest.mark.parametrize(
    "words",
    [(), ("--label", "switch"), ("--label", "a=1", "--label", "a=2"), ("--label", "a=1", "--remove", "a")],
)
def test_labels_that_are_none_are_refused_before_anybody_is_asked(live: OnePool, words: tuple[str, ...]) -> None:
    assert call("pool", "label", "lab", "a", *words).exit_code == 2
    assert live.asked == {}


def test_labels_are_shown_where_hosts_have_any(live: OnePool) -> None:
    live.pool["hosts"] = [host_of("a", {})]
    assert "LABELS" not in call("pool", "show", "lab").stdout
    live.pool["hosts"].append(host_of("b", {"switch": "leaf-3"}))
    assert "switch=leaf-3" in call("pool", "show", "lab").stdout


async def test_clients_label_hosts(live: OnePool) -> None:
    with Client() as client:
        assert client.label_host("lab", "a", {"switch": "leaf-3"}).labels == {"switch": "leaf-3"}
        with pytest.raises(InvalidInput, match="labels"):
            client.label_host("lab", "a", {"two words": "x"})
    async with AsyncClient() as awaited:
        assert (await awaited.label_host("lab", "a", {"switch": None})).labels == {}
