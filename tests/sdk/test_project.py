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
from allpass.errors import InvalidInput
from tests.sdk.fake_service import KEY, NOW, FakeService, json_of, ok, served


class OneProject(FakeService):
    """A project that can be changed, and its bill."""

    def __init__(self) -> None:
        super().__init__()
        self.project: dict[str, Any] = {"id": "proj_1", "name": "default", "created_at": NOW, "ahead": True}
        self.idle = 460_000
        self.asked: list[str] = []
        self.limits: dict[str, Any] = {"machines": 2, "per_day": 10_000_000, "providers": ["vast"]}
        self.limits |= {"machines_rented": 1, "spent_today": 4_000_000, "day_ends_at": NOW}

    def _route(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/project":
            self.project |= json_of(request) if request.method == "PATCH" else {}
            return ok(self.project)
        if request.url.path.startswith("/v1/projects"):
            return self._projects(request)
        if request.url.path == "/v1/limits":
            change = json_of(request) if request.method == "PATCH" else {}
            self.limits |= {"machines": change.get("machines", self.limits["machines"])}
            if "per_day_usd" in change:
                usd = change["per_day_usd"]
                self.limits["per_day"] = None if usd is None else round(usd * 1_000_000)
            return ok(self.limits)
        if request.url.path == "/v1/usage":
            lines = [{"key": None, "payer": "idle", "cost": self.idle, "gpu_ms": 1}] if self.idle else []
            rest = {"lines": 1, "cost": 1_000_000 - self.idle, "gpu_ms": 1}
            sums = {"cost": 1_000_000, "gpu_ms": 2, "idle_cost": self.idle, "so_far": False, "open_nodes": 0}
            return ok({"group_by": "job", "from_at": None, "to_at": None, "lines": lines, "rest": rest, **sums})
        return super()._route(request)

    def _projects(self, request: httpx.Request) -> httpx.Response:
        made = {**self.project, "id": "proj_2", "name": "vision", "archived_at": None}
        key = {
            "id": "key_1",
            "name": "first",
            "prefix": "ak_1",
            "scopes": ["admin"],
            "created_at": NOW,
            "key": "ak_1_x",
        }
        self.asked.append(f"{request.method} {request.url.path}")
        if request.url.path.endswith("/keys"):
            return ok({**key, "scopes": json_of(request)["scopes"]})
        if request.method == "PATCH":
            return ok({**made, **json_of(request)})
        if request.method == "GET":
            named = request.url.params.get("name", "vision") == "vision"
            return ok({"data": [made] if named else [], "next_cursor": None})
        if request.url.path == "/v1/projects":
            return ok({**made, **json_of(request), "key": key})
        return ok({**made, "archived_at": NOW if request.url.path.endswith("/archive") else None})


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
    told = " ".join(call("cost").output.split())
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


def test_projects_are_made_listed_archived_and_restored_by_name(live: OneProject) -> None:
    """The key of a new one is all that is printed on the output; a name is looked up, an id is taken as it is."""
    assert call("project", "create", "vision").stdout.strip() == "ak_1_x"
    assert "proj_2" in call("project", "list").stdout
    assert "to undo: allpass project restore proj_2" in call("project", "archive", "vision").stdout
    assert "in use" in call("project", "restore", "proj_2").stdout
    assert call("project", "key", "vision", "ada", "-s", "read").stdout.strip() == "ak_1_x"
    assert live.asked[-1] == "POST /v1/projects/proj_2/keys"
    assert "POST /v1/projects/proj_2/archive" in live.asked
    missing = call("project", "archive", "speech")
    assert missing.exit_code == 1
    assert "there is no project 'speech'" in missing.output


def test_the_class_of_jobs_that_name_none_is_settled_and_shown(live: OneProject) -> None:
    """By name or id; what is no class is told before anybody is asked; an older service says nothing: guaranteed."""
    told = call("project", "set", "vision", "--default-class", "spot").stdout
    assert "proj_2   vision   jobs that name no class are spot" in told
    assert live.asked[-1] == "PATCH /v1/projects/proj_2"
    assert "guaranteed" in call("project", "list").stdout
    assert "guaranteed, of jobs that name none" in call("project").stdout
    live.project["default_class"] = "spot"
    assert "spot, of jobs that name none" in call("project").stdout
    assert "spot" in call("project", "list").stdout
    live.asked.clear()
    for wrong in ((), ("--default-class", "cheap"), ("--default-class", "")):
        refused = call("project", "set", "vision", *wrong)
        assert refused.exit_code == 2
        assert "there are guaranteed and spot" in " ".join(refused.output.split())
    assert live.asked == []


async def test_both_clients_manage_projects(live: OneProject) -> None:
    with Client() as client:
        assert client.create_project("vision").key.key == "ak_1_x"
        assert [one.name for one in client.projects()] == ["vision"]
        assert client.change_project("proj_2", default_class="spot").default_class == "spot"
        with pytest.raises(InvalidInput, match="default_class: 'cheap'"):
            client.change_project("proj_2", default_class="cheap")  # type: ignore[arg-type]  # that is the point
        assert client.archive_project("proj_2").archived_at is not None
    async with AsyncClient() as client:
        assert (await client.restore_project("proj_2")).archived_at is None
        assert (await client.change_project("proj_2", default_class="spot")).default_class == "spot"
        assert [one.id async for one in client.projects(name="vision")] == ["proj_2"]
        assert (await client.create_project_key("proj_2", "ada", ["read"])).scopes == ["read"]


def test_limits_are_shown_and_changed(live: OneProject) -> None:
    """What is used up is beside what may be, with the command; what is not named stays; "none" takes one away."""
    told = call("limits").stdout
    assert "1, at most 2   (allpass limits set --machines N)" in told
    assert "$4.00, at most $10.00   (allpass limits set --per-day DOLLARS)" in told
    assert "at most $200.00" in call("limits", "set", "--per-day", "200").stdout
    assert live.limits["machines"] == 2
    assert "1, no limit" in call("limits", "set", "--machines", "none").stdout
    assert live.limits["per_day"] == 200_000_000
    for wrong in ((), ("--machines", "many"), ("--machines", "-1"), ("--per-day", "much")):
        assert call("limits", "set", *wrong).exit_code == 2


async def test_both_clients_change_limits(live: OneProject) -> None:
    with Client() as client:
        assert client.update_limits(machines=7).machines == 7
        with pytest.raises(InvalidInput, match="machines"):
            client.update_limits(machines=-1)
    async with AsyncClient() as client:
        assert (await client.update_limits(per_day_usd=None)).per_day is None
        assert (await client.limits()).machines == 7
