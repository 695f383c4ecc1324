"""A client of a service in memory, whose waits take no time and are written down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import pytest

from allpass.client import Client
from allpass.http import Retries
from tests.sdk.fake_service import KEY, FakeService


@dataclass
class Waits:
    """Time that moves only by waiting. `slept` is every wait, in seconds."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def clock(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody outside is asked about a model. Here alone: what a tokenizer writes differs by it."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def client(service: FakeService, waits: Waits) -> Iterator[Client]:
    with Client(
        service.base,
        KEY,
        transport=httpx.MockTransport(service),
        retries=Retries(chance=lambda: 0.5),
        sleep=waits.sleep,
        clock=waits.clock,
    ) as made:
        yield made
