"""The script that rents one real machine for a moment: it keeps its ceiling, and leaves nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.errors import OutcomeUnknown, Transient
from app.ports.provider import Machine, MachineRequest, MachineStatus
from scripts import live_smoke

CHEAP = Offer("one", "cheap", Tier.MARKETPLACE, "T4", 1, 1 << 34, 4, 1 << 34, Money(200_000), 1_000)
DEAR = replace(CHEAP, offer_id="dear", price_per_hour=Money(9_000_000))
LIMITS = live_smoke.Limits(most_micros=100_000, most_ms=60_000)


class OneMachine:
    """A provider with one machine at most. `lost`: the answer to create never comes."""

    name = "one"

    def __init__(self, *, offers: list[Offer], lost: bool = False, refuses_to_end: int = 0) -> None:
        self._offers, self._lost, self._refuses = offers, lost, refuses_to_end
        self.machine: Machine | None = None
        self.created: list[str] = []
        self.closed = False

    def traits(self) -> tuple[ProviderTraits, ...]:
        rule = BillingRule(1_000, BillingStart.READY)
        return (ProviderTraits("one", Tier.MARKETPLACE, rule, 1_000, 60_000, 1, False, False),)

    async def offers(self) -> list[Offer]:
        return self._offers

    async def create(self, request: MachineRequest) -> Machine:
        self.created.append(request.offer.offer_id)
        price, running = request.max_price_per_hour, MachineStatus.RUNNING
        self.machine = Machine("one", "m-1", request.label, Tier.MARKETPLACE, running, price, 0, 0, None)
        if self._lost:
            raise OutcomeUnknown("no answer")
        return self.machine

    async def get(self, ref: str) -> Machine | None:
        return self.machine

    async def find(self, label: str) -> list[Machine]:
        return [self.machine] if self.machine is not None and self.machine.label == label else []

    async def terminate(self, ref: str) -> None:
        if self._refuses:
            self._refuses -= 1
            raise Transient("not now")
        assert self.machine is not None
        self.machine = replace(self.machine, status=MachineStatus.ENDED)

    async def logs(self, ref: str, tail_lines: int) -> str:
        return "hello"

    async def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_smoke, "_LOOK_S", 0.001)


def smoke(provider: Any, *, rent: bool) -> int:
    return asyncio.run(live_smoke._smoke(provider, LIMITS, rent=rent))


def test_without_being_told_to_it_rents_nothing() -> None:
    """It only looks."""
    provider = OneMachine(offers=[CHEAP])
    assert smoke(provider, rent=False) == 0
    assert provider.created == []
    assert provider.closed


def test_nothing_above_the_ceiling_is_rented() -> None:
    """The whole time counts, the ending included; the cheapest is taken."""
    assert smoke(dear := OneMachine(offers=[DEAR]), rent=True) == 1
    assert dear.created == []
    assert smoke(both := OneMachine(offers=[DEAR, CHEAP]), rent=True) == 0
    assert both.created == ["cheap"]


@pytest.mark.parametrize(("lost", "refuses", "code"), [(False, 0, 0), (False, 3, 0), (True, 0, 1)])
def test_the_machine_is_ended_whatever_happens(lost: bool, refuses: int, code: int) -> None:
    """Also when the end is refused at first, and when the answer to create was lost."""
    provider = OneMachine(offers=[CHEAP], lost=lost, refuses_to_end=refuses)
    assert smoke(provider, rent=True) == code
    assert provider.machine is not None
    assert provider.machine.status is MachineStatus.ENDED


def test_what_cannot_be_ended_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With an exit code of its own."""
    monkeypatch.setattr(live_smoke, "_ENDING_S", 0.05)
    assert smoke(OneMachine(offers=[CHEAP], refuses_to_end=10**9), rent=True) == 3
    assert "END BY HAND at the provider: m-1" in capsys.readouterr().out
