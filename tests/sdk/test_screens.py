"""What people see, at 80, 100 and 140 columns: kept as files beside this one, and compared.

After a change that is meant: SCREENS=write ./allpass test -n 0 tests/sdk/test_screens.py, then look at them.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from allpass.cli import screen
from allpass.client import Client
from tests.sdk.fake_service import KEY, NOW, FakeService
from tests.sdk.test_cli import call
from tests.sdk.test_plan import FOUND
from tests.sdk.test_plan_machines import OVER

FIRST, SWEEP = "job_00000000000000000001", "swp_00000000000000000001"
FAILED, WAITING = "job_00000000000000000006", "job_00000000000000000007"
WHY = (
    "may take what costs at most $0.10/h (max_hourly), and the cheapest offer that fits is vast A100 at $0.71/h: goes "
    "on when max_hourly is raised or an offer is cheaper; has waited longer than its max_wait of 60 min: starts on the "
    "first place that is to be had and that its limits allow"
)
SCREENS = Path(__file__).parent / "screens"
PLACES: dict[str, dict[str, Any]] = {
    "vast": {"provider": "vast", "tier": "marketplace", "gpu_type": "A100", "gpu_count": 1, "price_per_hour": 710_000},
    "modal": {"provider": "modal", "tier": "serverless", "gpu_type": "H100", "gpu_count": 8,
              "price_per_hour": 31_593_600},
}  # fmt: skip
COMMANDS = {
    "ps": ["ps"],
    "show": ["show", FIRST],
    "events": ["events", FIRST],
    "nodes": ["nodes"],
    "top": ["top", "--once"],
    "offers": ["offers"],
    "cost": ["cost"],
    "project": ["project"],
    "model-names": ["model-names"],
    "plan": ["plan", "--model", "llama-3-8b"],
    "plan-machines": ["plan", "--model", "llama-3-8b", "--nodes", "2"],
    "sweep-list": ["sweep", "list"],
    "show-waiting": ["show", WAITING],
    "show-failed": ["show", FAILED],
    "explain": ["explain", WAITING],
    "set": ["set", WAITING, "retries=3"],
}
UNHAPPY = frozenset({"show-waiting", "show-failed", "explain", "set"})
ROWS = frozenset(
    {"ps", "top", "events", "nodes", "offers", "plan-machines"}
)  # piped, each is one line, as wide as it takes


class Filled(FakeService):
    """A service with a bit of everything."""

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/offers":
            return httpx.Response(200, json={"data": self.offers(), "next_cursor": None})
        if request.url.path == "/v1/jobs/plan":
            self.plan = OVER if b'"nodes"' in request.content else FOUND
        if request.url.path == "/v1/project":
            return httpx.Response(200, json={"id": "proj_1", "name": "default", "created_at": NOW, "ahead": True})
        if request.url.path == "/v1/model-names":
            told = {"from_start": "Qwen/Qwen2.5-7B-Instruct", "source": "start"}
            names: list[dict[str, Any]] = [
                {**told, "name": "davinci-002", "model": None, "source": "owner"},
                {**told, "name": "gpt-4o-mini", "model": "meta-llama/Llama-3.1-8B-Instruct", "source": "owner"},
                {**told, "name": "gpt-4o-mini-2024-07-18", "model": "Qwen/Qwen2.5-7B-Instruct"},
                {**told, "name": "our-model", "model": "/models/a-folder-that-all-machines-have-and-with-a-long-name"},
            ]
            return httpx.Response(200, json={"data": names, "next_cursor": None})
        if request.url.path.endswith("/explain"):
            next_ = (
                "is decided on again at once when there is news, else in at most 60 s, by the policy allpass: " + WHY
            )
            told = {"job_id": WAITING, "status": "queued", "headline": "queued for 1 h 2 min", "history": "/v1"}
            told["because"] = [{"text": WHY, "data": {}}]
            told["next"] = [{"text": next_, "data": {}}]
            told["deadline"] = {"at": NOW, "given": True, "text": "unknown whether it meets its deadline: " + WHY}
            return httpx.Response(200, json=told)
        if request.url.path == "/v1/usage":
            return httpx.Response(200, json=self.usage())
        return super().__call__(request)

    def offers(self) -> list[dict[str, Any]]:
        seen = (datetime.now(UTC) - timedelta(minutes=12, seconds=30)).isoformat()
        told = {"gpu_memory_bytes": 42_000_000_000, "cpus": 8, "memory_bytes": 64_000_000_000, "seen_at": seen}
        return [
            {
                **told, **place, "offer_id": offer, "region": region, "startup_ms": startup_ms,
                "traffic_per_gb": 10_000 if place is PLACES["vast"] else None,
                "mean_life_ms": 7_200_000 if place is PLACES["vast"] else None,
                "price_per_gpu_hour": place["price_per_hour"] // place["gpu_count"],
            }
            for place, offer, region, startup_ms in (
                (PLACES["vast"], "8841203", "Sweden, SE", 36_000),
                (PLACES["modal"], "H100!-8-long-name-of-an-offer", "", 4_000),
            )
        ]  # fmt: skip

    def explanation(self) -> dict[str, Any]:
        later = "is decided on again at once when there is news, else in at most 60 s, by the policy allpass"
        return {
            "job_id": WAITING, "status": "queued", "headline": "queued for 1 h 2 min", "history": "/v1",
            "because": [{"text": WHY, "data": {}}], "next": [{"text": later, "data": {}}],
            "deadline": {"at": NOW, "given": True, "text": "in 4 h 51 min; unknown whether it meets it: nobody knows "
                         "how many steps it has, and it has not begun"},
        }  # fmt: skip

    def usage(self) -> dict[str, Any]:
        lines = [
            {"key": FIRST, "name": "llama3-8b-support-tickets", "payer": payer, "cost": cost, "gpu_ms": ms}
            for payer, cost, ms in (("run", 4_000_000, 7_200_000), ("boot", 100_000, 60_000))
        ]  # fmt: skip
        lines.append({"key": FIRST, "name": "llama3-8b-support-tickets", "payer": "idle", "cost": 300_000, "gpu_ms": 1})
        lines.append({"key": None, "name": None, "payer": "idle", "cost": 200_000, "gpu_ms": 359_999})
        return {
            "group_by": "job", "from_at": None, "to_at": None, "lines": lines, "cost": 4_600_000, "gpu_ms": 7_620_000,
            "rest": {"lines": 0, "cost": 0, "gpu_ms": 0}, "so_far": True, "open_nodes": 2,
            "idle_cost": 500_000,
        }  # fmt: skip


def fill(service: FakeService) -> None:
    now = datetime.now(UTC)
    later = (now + timedelta(hours=4, minutes=51, seconds=30)).isoformat()
    service.add_job(
        name="llama3-8b-support-tickets", status="running", step=1204, total_steps=3120, cost=1_020_000, moves=1,
        idle_cost=310_000, where={"node_id": "node_0000000000000000001", **PLACES["vast"]}, soft_deadline=later,
        estimated_finish_at=(now + timedelta(hours=2, minutes=31, seconds=30)).isoformat(), checkpoint_step=1200,
    )  # fmt: skip
    service.add_job(
        name="bert-imdb", status="running", step=88, total_steps=450, cost=60_000, soft_deadline=later,
        where={"node_id": "node_0000000000000000002", **PLACES["modal"]}, sweep_id=SWEEP,
    )  # fmt: skip
    service.add_job(
        name="qwen-sft", status="waiting", step=640, total_steps=5000, soft_deadline=later, sweep_id=SWEEP,
        message="renting: vast offer 8841203 boots, usually ready after 36 s; two jobs with earlier deadlines wait",
    )  # fmt: skip
    service.add_job(
        name="late", status="checkpointing", step=100_000, total_steps=120_000, cost=1_234_560_000,
        soft_deadline=(now - timedelta(days=12, hours=3, minutes=5)).isoformat(),
    )  # fmt: skip
    service.add_job(name="old", status="succeeded", soft_deadline=later, ended_at=now.isoformat(), cost=1_234)
    service.add_event(
        FIRST, "run_starting", "starts on modal A100 at $2.10/h, the cheapest of 8 serverless offers that fit"
    )
    service.add_event(FIRST, "move_planned", "moves to node_01M7YSZS0FZ8677GDZ72 (vast A100, $0.516/h): 59 s are left")
    service.add_event(FIRST, "checkpoint_saved", "checkpoint of step 113 saved")
    held = now - timedelta(hours=1, seconds=20)
    for number, (place, jobs) in enumerate((("vast", [FIRST]), ("modal", ["job_00000000000000000002"] * 2)), 1):
        service.nodes.append({
            "id": f"node_{number:020d}", "state": "ready", **PLACES[place], "gpu_memory_bytes": 1, "region": "",
            "job_ids": jobs, "requested_at": held.isoformat(), "ready_at": held.isoformat(), "ended_at": None,
            "cost": 500_000, "message": None,
        })  # fmt: skip
    service.plan = FOUND


def add_unhappy(service: FakeService) -> None:
    """Jobs with much to say; no list has them."""
    later = (datetime.now(UTC) + timedelta(hours=4, minutes=51, seconds=30)).isoformat()
    service.add_job(
        name="broken", status="failed", reason="user_code_failed", retries=3, retried=1, step=42, ended_at=NOW,
        message="exit code 1: ValueError: row 4711 of the data has no field 'text', and its fields are 'prompt' and "
        "'answer'; the second time at step 42, so that it is not begun again (1 of 3 retries used)",
        soft_deadline=later,
    )  # fmt: skip
    service.add_job(
        name="waits", message=WHY, max_wait_s=3600, max_hourly=100_000, soft_deadline=later,
        submitted_at=(datetime.now(UTC) - timedelta(hours=2)).isoformat(),
        links={"W&B": "https://wandb.ai/a-team-with-a-long-name/a-project-with-a-long-name/runs/0123456789abcdef"},
    )  # fmt: skip


def sit_before(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A service that is filled, and a clock that stands."""
    service = Filled()
    fill(service)
    if name in UNHAPPY:
        add_unhappy(service)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setattr(screen, "colours_wanted", lambda _stream=None: False)
    monkeypatch.setattr("allpass.cli.words.moment", lambda at: "01-01 12:00:00")
    monkeypatch.setattr("allpass.cli.top.clock", lambda: "12:00:00")
    for module in ("overview", "reading", "top", "spending", "plan", "sweeps", "project", "controls", "model_names"):
        monkeypatch.setattr(
            f"allpass.cli.{module}.connect",
            lambda: Client(service.base, KEY, transport=httpx.MockTransport(service)),
        )


@pytest.mark.parametrize("columns", [80, 100, 140])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_screen_is_as_it_was_looked_at(monkeypatch: pytest.MonkeyPatch, name: str, columns: int) -> None:
    """Nothing is wider than the terminal, and ids are whole."""
    sit_before(monkeypatch, name)
    monkeypatch.setattr(screen, "is_interactive", lambda _stream=None: True)
    monkeypatch.setattr(screen, "width", lambda: columns)
    result = call(*COMMANDS[name])
    assert result.exit_code == 0, result.output
    assert max(len(line) for line in result.stdout.splitlines()) <= columns, result.stdout
    kept = SCREENS / f"{name}-{columns}.txt"
    if os.environ.get("SCREENS") == "write":
        kept.write_text(result.stdout)
    assert result.stdout == kept.read_text()


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - ROWS))
def test_what_is_kept_is_as_wide_as_a_page(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Where no person reads, prose goes on below itself after 100 columns; nothing is left out, and addresses stay
    whole."""
    sit_before(monkeypatch, name)
    result = call(*COMMANDS[name])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert all(len(line) <= screen.WIDEST or line.strip().startswith("https://") for line in lines), result.stdout
    if name in ("show-waiting", "explain", "set"):
        assert WHY in " ".join(line.strip() for line in lines)


def test_a_state_has_its_colour_and_what_follows_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Colours do not count where a line ends."""
    monkeypatch.setattr(screen, "is_interactive", lambda _stream=None: True)
    monkeypatch.setattr(screen, "width", lambda: 80)
    monkeypatch.setattr(screen, "colours_wanted", lambda _stream=None: False)
    plain = screen.headline(WAITING, "queued", WHY)
    monkeypatch.setattr(screen, "colours_wanted", lambda _stream=None: True)
    coloured = screen.headline(WAITING, "queued", WHY)
    assert coloured[0] == plain[0].replace("queued", "\x1b[33mqueued\x1b[0m")
    assert coloured[1:] == plain[1:]
