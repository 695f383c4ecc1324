"""`allpass defrag` and `allpass fragmentation`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from allpass.cli import main as cli
from allpass.client import AsyncClient, Client
from allpass.errors import InvalidInput
from app.api.owner_examples import DEFRAGMENTATION, FRAGMENTATION
from tests.sdk.fake_service import KEY, FakeService, json_of, ok, served


class OnePlan(FakeService):
    """`plan` is what it answers about defragmentations; `asked` what it was asked last."""

    def __init__(self) -> None:
        super().__init__()
        self.plan: dict[str, Any] = dict(DEFRAGMENTATION)
        self.fits: dict[str, Any] = deepcopy(FRAGMENTATION)
        self.asked: dict[str, Any] = {}
        self.paths: list[str] = []

    def _route(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/v1/fragmentation":
            return ok({**self.fits, "pool": request.url.params.get("pool")})
        if not path.startswith("/v1/defragmentations"):
            return super()._route(request)
        self.paths.append(f"{request.method} {path}")
        if path == "/v1/defragmentations" and request.method == "GET":
            return ok({"items": [self.plan]})
        if path == "/v1/defragmentations":
            self.asked = json_of(request)
        return ok(self.plan)


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OnePlan]:
    service = OnePlan()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with served(service) as url:
        monkeypatch.setenv("ALLPASS_URL", url)
        monkeypatch.setenv("ALLPASS_API_KEY", KEY)
        yield service


def call(*words: str) -> Result:
    return CliRunner().invoke(cli.app, list(words))


def test_a_plan_says_which_jobs_move_and_that_nothing_was_done(live: OnePlan) -> None:
    live.plan |= {"id": None, "state": "planned"}
    told = call("defrag", "--dry-run", "--pool", "lab", "--max-moves", "8").stdout
    assert live.asked == {"goal": "pools", "pool": "lab", "dry_run": True, "max_moves": 8}
    (release,) = live.plan["releases"]
    assert f"{release['node']} ({release['gpus']} GPUs)" in told
    assert f"{release['steps'][0]['source']} -> {release['steps'][0]['target']}" in told
    assert "Nothing was done. Without --dry-run it is." in told


def test_a_plan_says_who_comes_together_from_where_to_where_and_what_that_is_worth(live: OnePlan) -> None:
    live.plan |= {"id": None, "state": "planned", "releases": []}
    told = call("defrag", "--dry-run").stdout
    assert "(2 x 8 GPUs), done: 1 under leaf-3, 1 under leaf-4 (entropy 0.69) -> 2 under leaf-3 (entropy 0.00)" in told
    assert "with gpu-box-7; saves about 540 s, pauses for 11.0 s" in told
    assert "There is nothing to vacate." not in told and "Nothing was done. Without --dry-run it is." in told
    live.plan["repairs"] = [{**live.plan["repairs"][0], "gain_s": None, "why": None}]
    assert "what it saves is not known" in call("defrag", "--dry-run").stdout
    assert "1 of 1 together" in call("defrag", "list").stdout


def test_a_service_of_a_release_before_brings_nobody_together(live: OnePlan) -> None:
    del live.plan["repairs"]
    assert "together" not in call("defrag", "list").stdout


def test_what_is_under_way_is_shown_and_called_off(live: OnePlan) -> None:
    asked = call("defrag", "--rent")
    assert (live.asked["goal"], live.asked["dry_run"]) == ("rent", False)
    call("defrag", "show", live.plan["id"])
    call("defrag", "cancel", live.plan["id"])
    assert live.plan["id"] in call("defrag", "list").stdout
    here = f"/v1/defragmentations/{live.plan['id']}"
    assert live.paths[1:3] == [f"GET {here}", f"POST {here}/cancel"]
    assert asked.exit_code == 0


def test_what_was_measured_stands_beside_what_was_expected(live: OnePlan) -> None:
    """An older service says nothing of it."""
    (release,) = live.plan["releases"]
    live.plan["releases"] = [{**release, "paused_s": 2.94, "pause_s": 4.0}]
    assert "paused 2.9 GPU-seconds so far, 4.0 were expected" in call("defrag", "show", "x").stdout
    live.plan["releases"] = [{name: value for name, value in release.items() if name != "paused_s"}]
    assert "so far" not in call("defrag", "show", "x").stdout


@pytest.mark.parametrize(
    "words", [("show",), ("list", "x"), ("stop",), ("list", "--rent"), ("--max-moves", "few"), ("show", "a", "b")]
)
def test_words_that_mean_nothing_ask_for_nothing(live: OnePlan, words: tuple[str, ...]) -> None:
    assert call("defrag", *words).exit_code == 2
    assert live.paths == []


def test_what_would_fit_is_told_with_what_blocks_the_rest(live: OnePlan) -> None:
    told = call("fragmentation", "--pool", "lab").stdout
    assert "pool lab: 13 of 24 GPUs are free, and 1 of 3 hosts are whole" in told
    rows = {line.split("   ")[0].strip(): line.split()[-4:] for line in told.splitlines()}
    assert rows["1 GPU, 8 CPUs"] == ["13", "0", "0", "-"]
    assert rows["8 GPUs, 128 CPUs"] == ["0", "5", "8", "-"]
    assert rows["128 GPUs in one switch, of 8 with 64 CPUs"] == ["0", "5", "0", "8"]
    assert json.loads(call("fragmentation", "--json").stdout)["pool"] is None
    assert "in one rack" not in told


def test_what_one_rack_would_hold_is_told_where_racks_are_said(live: OnePlan) -> None:
    for gang in live.fits["gangs"]:
        gang |= {"fitting_in_rack": 1, "blocked_by_rack": 24}
    told = " ".join(call("fragmentation").stdout.split())
    assert "128 GPUs in one rack, of 8 with 64 CPUs 1 5 0 24 a rack" in told


async def test_the_clients_ask_the_same(live: OnePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client() as client:
        assert client.fragmentation().free_gpus == 13
        with pytest.raises(InvalidInput, match="max_moves"):
            client.defragment(max_moves=0)
    async with AsyncClient() as client:
        assert (await client.fragmentation(pool="lab")).pool == "lab"
        assert (await client.defragment(dry_run=True)).goal == "pools"
        assert len(await client.list_defragmentations()) == 1
