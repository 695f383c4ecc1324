"""A clock that stands still until it is told to move."""

from __future__ import annotations


class StillClock:
    """`sleep_ms` moves it on, so that waiting takes no time."""

    def __init__(self, now_ms: int = 1_795_252_000_000) -> None:  # 2026-11-21 09:06:40 UTC
        self.time_ms = now_ms

    def now_ms(self) -> int:
        return self.time_ms

    async def sleep_ms(self, duration_ms: int) -> None:
        self.time_ms += duration_ms

    def pass_h(self, hours: float) -> None:
        self.time_ms += round(hours * 3_600_000)
