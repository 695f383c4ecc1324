"""Which hosts of a provider have failed us."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from app.core.hosts import COUNTS_FOR_MS, HostFailure


class HostFailures(Protocol):
    """One provider's hosts that failed, as all processes remember them. Both calls raise Transient when the memory
    cannot be reached."""

    async def note(self, failure: HostFailure) -> None:
        """Remember it. A machine that was noted before counts once, from the first time on."""
        ...

    async def known(self, now_ms: int) -> Sequence[HostFailure]:
        """Those that count at `now_ms`."""
        ...


class ProcessHostFailures:
    """What this process alone remembers: for tools without a database, and for tests."""

    def __init__(self) -> None:
        self._failures: dict[tuple[str, str], HostFailure] = {}

    async def note(self, failure: HostFailure) -> None:
        """See `HostFailures.note`."""
        self._failures.setdefault((failure.host, failure.machine), failure)

    async def known(self, now_ms: int) -> Sequence[HostFailure]:
        """See `HostFailures.known`."""
        return [failure for failure in self._failures.values() if failure.at_ms > now_ms - COUNTS_FOR_MS]
