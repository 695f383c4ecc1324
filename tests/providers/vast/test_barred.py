"""Hosts that failed are left alone for a while; hosts under trial until that is over."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from app.core.hosts import HostFailure
from app.errors import Transient
from app.ports.failures import ProcessHostFailures
from providers.vast.barred import Attempts, Blacklist
from tests.providers.vast.clocks import StillClock


class _Away(ProcessHostFailures):
    """A memory that cannot be reached while `is_away`."""

    is_away = True

    async def note(self, failure: HostFailure) -> None:
        if self.is_away:
            raise Transient("away")
        await super().note(failure)

    async def known(self, now_ms: int) -> Sequence[HostFailure]:
        if self.is_away:
            raise Transient("away")
        return await super().known(now_ms)


async def test_what_one_process_blames_bars_the_others_by_the_clock() -> None:
    """Two blacklists over one memory: a host is barred for both from the first failure on, for six hours."""
    clock, failures = StillClock(), ProcessHostFailures()
    finder, other = Blacklist(clock, failures), Blacklist(clock, failures)
    await finder.blame("7", "contract-1")
    assert await other.hosts() == {"7"}
    clock.pass_h(5.9)
    assert await other.hosts() == {"7"}
    clock.pass_h(0.2)
    assert await finder.hosts() == await other.hosts() == frozenset()


async def test_one_contract_is_blamed_once_whoever_finds_it() -> None:
    """Two processes that see the same contract come to nothing are one failure: six hours, not twelve."""
    clock, failures = StillClock(), ProcessHostFailures()
    for _ in range(2):
        await Blacklist(clock, failures).blame("7", "contract-1")
    clock.pass_h(6.1)
    assert await Blacklist(clock, failures).hosts() == frozenset()


async def test_what_cannot_be_told_now_is_told_later() -> None:
    """Without the memory a failure is kept in mind, nobody can say which hosts are barred, and then all know."""
    clock, failures = StillClock(), _Away()
    finder = Blacklist(clock, failures)
    await finder.blame("7", "contract-1")
    with pytest.raises(Transient):
        await finder.hosts()
    failures.is_away = False
    await finder.blame("8", "contract-2")
    assert await Blacklist(clock, failures).hosts() == {"7", "8"}


def test_an_attempt_holds_its_offer_and_its_host() -> None:
    """While an attempt is open neither its offer nor another offer of its host is tried."""
    attempts = Attempts(StillClock(), longest_ms=600_000)
    assert attempts.begin("node-a", "100", "7")
    assert not attempts.begin("node-b", "100", "7")
    assert not attempts.begin("node-b", "101", "7")
    assert attempts.begin("node-b", "200", "8")
    attempts.end("node-a")
    assert attempts.begin("node-c", "101", "7")


def test_an_attempt_does_not_last_for_ever() -> None:
    """An attempt of which nothing more is heard is over after the longest start."""
    clock = StillClock()
    attempts = Attempts(clock, longest_ms=600_000)
    assert attempts.begin("node-a", "100", "7")
    clock.time_ms += 599_999
    assert attempts.holds("100", "7")
    clock.time_ms += 1
    assert not attempts.holds("100", "7")
