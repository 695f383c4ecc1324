"""Time and chance, given as arguments."""

from __future__ import annotations

from typing import Protocol

from app.core.model.ids import Prefix


class Clock(Protocol):
    """Wall-clock time in milliseconds since the epoch, and a way to wait that tests can control."""

    def now_ms(self) -> int: ...

    async def sleep_ms(self, duration_ms: int) -> None: ...


class IdSource(Protocol):
    """Makes new ids that sort by time."""

    def new(self, prefix: Prefix) -> str: ...
