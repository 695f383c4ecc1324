"""Hosts that failed are left alone for a while; hosts under trial until that is over."""

from __future__ import annotations

from providers.vast.barred import Attempts, Blacklist
from tests.providers.vast.clocks import StillClock


def test_a_failure_bars_a_host_for_six_hours() -> None:
    """One failure counts for six hours; then the host gets another chance."""
    clock = StillClock()
    blacklist = Blacklist(clock)
    assert not blacklist.bars("7")
    blacklist.blame("7")
    assert blacklist.bars("7")
    assert not blacklist.bars("8")
    clock.pass_h(5.9)
    assert blacklist.bars("7")
    clock.pass_h(0.2)
    assert not blacklist.bars("7")


def test_a_host_that_fails_again_and_again_stays_away_longer() -> None:
    """Each further failure adds to what is left of the earlier ones."""
    clock = StillClock()
    blacklist = Blacklist(clock)
    for _ in range(4):
        blacklist.blame("7")
    clock.pass_h(17.9)
    assert blacklist.bars("7")
    clock.pass_h(0.2)
    assert not blacklist.bars("7")


def test_a_blacklist_survives_its_process() -> None:
    """What one has dumped, another takes up, with the time that has passed; what has decayed is not kept."""
    clock = StillClock()
    before = Blacklist(clock)
    before.blame("old")
    clock.pass_h(48)
    before.blame("7")
    kept = before.dump()
    assert [blame.machine for blame in kept] == ["7"]
    after = Blacklist(clock)
    after.seed(kept)
    assert after.bars("7")
    clock.pass_h(6.1)
    assert not after.bars("7")


def test_what_is_known_already_is_not_weakened_by_seeding() -> None:
    """Of two records of one host the one that weighs more counts."""
    clock = StillClock()
    weak, strong = Blacklist(clock), Blacklist(clock)
    weak.blame("7")
    for _ in range(3):
        strong.blame("7")
    strong.seed(weak.dump())
    clock.pass_h(10)
    assert strong.bars("7")


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
