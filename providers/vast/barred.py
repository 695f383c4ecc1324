"""Which hosts not to rent from: those of an attempt under way, and those that failed us lately."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from app.core.hosts import HostFailure, barred_hosts
from app.errors import ProviderError
from app.ports.clock import Clock
from app.ports.failures import HostFailures

_log = logging.getLogger(__name__)


class Blacklist:
    """The hosts that failed, as all processes remember them. What cannot be told to the others now is told later."""

    def __init__(self, clock: Clock, failures: HostFailures) -> None:
        self._clock = clock
        self._failures = failures
        self._untold: list[HostFailure] = []

    async def blame(self, host: str, machine: str) -> None:
        """The host has failed with this machine. Never fails itself."""
        self._untold.append(HostFailure(host, machine, self._clock.now_ms()))
        try:
            await self._tell()
        except ProviderError as error:
            _log.warning("vast: that host %s failed is told later: %s", host, error)

    async def hosts(self) -> frozenset[str]:
        """The hosts to stay away from now. Raises Transient when nobody can say."""
        await self._tell()
        now_ms = self._clock.now_ms()
        return frozenset(barred.host for barred in barred_hosts(await self._failures.known(now_ms), now_ms))

    async def _tell(self) -> None:
        while self._untold:
            failure = self._untold[0]
            await self._failures.note(failure)  # telling it twice does no harm
            if failure in self._untold:
                self._untold.remove(failure)


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
