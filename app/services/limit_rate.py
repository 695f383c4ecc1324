"""How often a key may call: a token bucket per key, in this process. Several API processes each grant the rate."""

from __future__ import annotations

import math
from collections import OrderedDict

from app.errors import TooManyRequests
from app.ports.clock import Clock

_REMEMBERED_KEYS = 10_000


class RateLimiter:
    """`per_s` requests a second for each key, `burst` of them at once. `per_s` 0 lets everything through."""

    def __init__(self, per_s: float, burst: int, clock: Clock) -> None:
        self._per_ms = per_s / 1000
        self._burst = float(burst)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, int]] = OrderedDict()  # key id: tokens left, and when

    def take(self, key_id: str) -> None:
        """One request of this key. Raises TooManyRequests, saying when the next one is let in."""
        if not self._per_ms:
            return
        now_ms = self._clock.now_ms()
        tokens, at_ms = self._buckets.pop(key_id, (self._burst, now_ms))
        tokens = min(self._burst, tokens + max(0, now_ms - at_ms) * self._per_ms)  # a clock may be set back
        allowed = tokens >= 1.0
        self._buckets[key_id] = (tokens - 1.0 if allowed else tokens, now_ms)
        if len(self._buckets) > _REMEMBERED_KEYS:
            self._buckets.popitem(last=False)  # the one that was silent for longest: its bucket is the fullest
        if not allowed:
            wait_ms = max(1, math.ceil((1.0 - tokens) / self._per_ms))
            raise TooManyRequests(
                f"more than {self._per_ms * 1000:g} requests a second with this key (a burst of {self._burst:g} "
                f"is used up); ask again in {wait_ms} ms",
                retry_after_ms=wait_ms,
            )
