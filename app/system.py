"""The real clock and real chance: what production code is given where tests give their own."""

from __future__ import annotations

import asyncio
import secrets
import time

from app.core.model.ids import ENTROPY_BITS, Prefix, make_id


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)


class RandomIds:
    """Ids from the time and 50 random bits."""

    def __init__(self, clock: SystemClock) -> None:
        self._clock = clock

    def new(self, prefix: Prefix) -> str:
        return make_id(prefix, self._clock.now_ms(), secrets.randbits(ENTROPY_BITS))
