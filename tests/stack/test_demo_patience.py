"""The demo waits for as long as anything advances, and shows its table in any case."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from rich.console import Console

from allpass.client import Client
from allpass.job import Job
from app.cli.demo.jobs import DemoJobs
from app.cli.demo.reference import ReferenceRun
from app.cli.demo.verdict import judge
from app.cli.demo.view import STALLED_AFTER_S, watch
from app.stack.supervisor import Stack
from tests.sdk.fake_service import KEY, FakeService

ENDED = {"ended_at": "2030-01-01T13:00:00Z", "message": "ValueError: Error", "reason": "user_code_failed"}


class World:
    """Time passes by waiting; `each_second` is what happens meanwhile."""

    def __init__(self, each_second: Callable[[World], None]) -> None:
        self.service = FakeService()
        self.client = Client(self.service.base, KEY, transport=httpx.MockTransport(self.service))
        self.now_s = 0.0
        self.reference_is_done = False
        self.each_second = each_second
        self.rows = [self.service.add_job(status="running", name=name) for name in ("short", "long", "failing")]
        self.jobs = DemoJobs(*(Job(row["id"], self.client) for row in self.rows))
        self.reference = SimpleNamespace(step=0, start=lambda: None, done=lambda: self.reference_is_done)

    def sleep(self, seconds: float) -> None:
        before = int(self.now_s)
        self.now_s += seconds
        if int(self.now_s) > before:
            self.each_second(self)

    def watch(self) -> str | None:
        return watch(
            self.client,
            self.jobs,
            cast("ReferenceRun", self.reference),
            Console(file=io.StringIO()),
            lambda: None,
            clock=lambda: self.now_s,
            sleep=self.sleep,
        )


def test_a_slow_machine_is_waited_for() -> None:
    """Half an hour of steps, then of the uninterrupted run, each a minute after the last: no limit."""

    def slowly(world: World) -> None:
        if int(world.now_s) % 60 or world.reference_is_done:
            return
        if world.rows[1]["step"] < 15:
            world.rows[1]["step"] += 1
        elif world.reference.step < 15:
            for row in world.rows:
                row.update(status="succeeded", **ENDED)
            world.reference.step += 1
        else:
            world.reference_is_done = True

    world = World(slowly)
    assert world.watch() is None
    assert world.now_s > 30 * 60


def test_a_standstill_is_told_with_what_is_not_over() -> None:
    """Nothing at all has changed for three minutes."""
    world = World(lambda _: None)
    world.rows[0].update(status="succeeded", **ENDED)
    told = world.watch()
    assert told == "nothing advanced for 180 s: long is running at step 0, failing is running at step 0"
    assert STALLED_AFTER_S <= world.now_s < 2 * STALLED_AFTER_S


def test_the_table_is_shown_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what was found, and the standstill as its first problem."""
    world = World(lambda _: None)
    stays: dict[str, Any] = {"stays": [], "waiting_ms": 0, "running_ms": 0, "cost": 0, "all_serverless": 0}
    monkeypatch.setattr(Client, "timeline", lambda _self, _id: SimpleNamespace(**stays))
    monkeypatch.setattr("app.cli.demo.verdict._compare_with_clouds", lambda *_: (1, False))
    reference = SimpleNamespace(losses=dict, adapter_sha256=lambda: None, failure=lambda: None)
    shown = io.StringIO()
    verdict = judge(
        cast("Stack", None),
        world.client,
        world.jobs,
        cast("ReferenceRun", reference),
        Console(file=shown, width=100),
        started_s=0.0,
        stalled="nothing advanced",
    )
    assert "What happened" in shown.getvalue()
    assert (verdict.ok, verdict.problems[0]) == (False, "nothing advanced")
