"""The real clock and real chance: what production code is given where tests give their own."""

from __future__ import annotations

import asyncio
import secrets
import time

from app.core.model.ids import ENTROPY_BITS, Prefix, make_id

_WORD_BYTES = 8
_POOL = 256


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)


class RandomIds:
    """Ids from the time and 50 random bits, which are fetched many at a time: ids are made on the hot path."""

    def __init__(self, clock: SystemClock) -> None:
        self._clock = clock
        self._pool: list[int] = []

    def new(self, prefix: Prefix) -> str:
        try:
            entropy = self._pool.pop()  # one step, also between threads
        except IndexError:
            fetched = secrets.token_bytes(_POOL * _WORD_BYTES)
            words = [fetched[at : at + _WORD_BYTES] for at in range(0, len(fetched), _WORD_BYTES)]
            entropy, *rest = (int.from_bytes(word, "big") >> (8 * _WORD_BYTES - ENTROPY_BITS) for word in words)
            self._pool.extend(rest)
        return make_id(prefix, self._clock.now_ms(), entropy)
