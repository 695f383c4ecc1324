"""`allpass top` tells of every job that is not over, however many have ended since it was submitted."""

from __future__ import annotations

from typing import get_args

import httpx
import pytest

from allpass.cli import screen, top
from allpass.client import Client
from allpass.wire.jobs import TERMINAL_STATUSES, JobStatus
from tests.sdk.fake_service import KEY, FakeService
from tests.sdk.test_cli import call


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> FakeService:
    fake = FakeService()
    monkeypatch.setattr(screen, "width", lambda: 200)
    monkeypatch.setattr(top, "connect", lambda: Client(fake.base, KEY, transport=httpx.MockTransport(fake)))
    return fake


def test_it_asks_for_every_state_that_is_not_the_last() -> None:
    assert {*top.NOT_OVER} == {*get_args(JobStatus)} - TERMINAL_STATUSES


def test_a_long_job_is_shown_though_a_thousand_newer_ones_are_over(service: FakeService) -> None:
    service.add_job(name="the-long-one", status="running")
    for _ in range(1000):
        service.add_job(status="succeeded")
    told = call("top", "--once").stdout
    assert "the-long-one" in told
    assert "jobs: 1 running" in told


def test_of_very_many_it_shows_the_newest_and_says_so(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "_MOST_JOBS", 3)
    for _ in range(5):
        service.add_job(status="queued")
    assert "jobs: the newest 3: 3 queued" in call("top", "--once").stdout
