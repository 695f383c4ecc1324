"""Which hosts not to rent from: those of an attempt under way, and those that failed us lately."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.ports.clock import Clock

_HALF_LIFE_MS = 6 * 3_600_000
_BARRED_FROM = 0.5
_FORGOTTEN_BELOW = 0.01


@dataclass(frozen=True, slots=True)
class Blame:
    """What is held against a host: `points` at `at_ms`, half as much every six hours."""

    machine: str
    points: float
    at_ms: int


class Blacklist:
    """One failure bars a host for six hours; each further one adds a point, so that repeaters stay away for longer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._blames: dict[str, Blame] = {}

    def blame(self, machine: str) -> None:
        """The host failed once more."""
        now_ms = self._clock.now_ms()
        self._blames[machine] = Blame(machine, self._points(machine, now_ms) + 1, now_ms)

    def bars(self, machine: str) -> bool:
        """Whether to stay away from the host now."""
        return self._points(machine, self._clock.now_ms()) >= _BARRED_FROM

    def dump(self) -> tuple[Blame, ...]:
        """All that still counts, to be kept elsewhere."""
        now_ms = self._clock.now_ms()
        kept = (machine for machine in sorted(self._blames) if self._points(machine, now_ms) >= _FORGOTTEN_BELOW)
        return tuple(self._blames[machine] for machine in kept)

    def seed(self, blames: Iterable[Blame]) -> None:
        """Take up what `dump` gave. What weighs more counts, for hosts that are known on both sides."""
        now_ms = self._clock.now_ms()
        for blame in blames:
            if _decayed(blame, now_ms) > self._points(blame.machine, now_ms):
                self._blames[blame.machine] = blame

    def _points(self, machine: str, now_ms: int) -> float:
        blame = self._blames.get(machine)
        return 0.0 if blame is None else _decayed(blame, now_ms)


@dataclass(frozen=True, slots=True)
class _Attempt:
    offer_id: str
    machine: str
    until_ms: int


class Attempts:
    """Creates under way, by label. Two rents of one offer may both be answered with yes, and all but one never start:
    so neither an offer nor its host is tried again before the earlier attempt runs, has ended, or has had its time."""

    def __init__(self, clock: Clock, longest_ms: int) -> None:
        self._clock = clock
        self._longest_ms = longest_ms
        self._open: dict[str, _Attempt] = {}

    def begin(self, label: str, offer_id: str, machine: str) -> bool:
        """Take the offer and its host, unless an attempt is open on one of them."""
        if self.holds(offer_id, machine):
            return False
        self._open[label] = _Attempt(offer_id, machine, self._clock.now_ms() + self._longest_ms)
        return True

    def holds(self, offer_id: str, machine: str) -> bool:
        """Whether an attempt is open on this offer, or on this host."""
        now_ms = self._clock.now_ms()
        self._open = {label: each for label, each in self._open.items() if each.until_ms > now_ms}
        return any(each.offer_id == offer_id or each.machine == machine for each in self._open.values())

    def end(self, label: str | None) -> None:
        """What was tried under this label runs, or is over, or came to nothing."""
        if label is not None:
            self._open.pop(label, None)


def _decayed(blame: Blame, now_ms: int) -> float:
    return float(blame.points * 0.5 ** (max(0, now_ms - blame.at_ms) / _HALF_LIFE_MS))
