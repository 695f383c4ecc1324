"""How much somebody may send: a bucket for each, in this process. Several API processes each grant the rate."""

from __future__ import annotations

import math
from collections import OrderedDict

from app.errors import TooManyRequests
from app.ports.clock import Clock

_REMEMBERED = 10_000


class RateLimiter:
    """`per_s` a second for each who asks, `burst` at once. `per_s` 0 lets everything through. `what` is counted, and
    `whose` it is: for the message."""

    def __init__(
        self, per_s: float, burst: int, clock: Clock, *, what: str = "requests", whose: str = "with this key"
    ) -> None:
        self._per_ms = per_s / 1000
        self._burst = float(burst)
        self._clock = clock
        self._what = what
        self._whose = whose
        self._buckets: OrderedDict[str, tuple[float, int]] = OrderedDict()  # by id: tokens left, and when

    def forget(self, owner_id: str) -> None:
        """This one has its whole burst again."""
        self._buckets.pop(owner_id, None)

    def standing(self, owner_id: str) -> tuple[int, int, int]:
        """How many this one may ask for at once when its bucket is full, how many now, and in how many milliseconds it
        is full again."""
        tokens, at_ms = self._buckets.get(owner_id, (self._burst, self._clock.now_ms()))
        if not self._per_ms:
            return int(self._burst), int(self._burst), 0
        tokens = min(self._burst, tokens + max(0, self._clock.now_ms() - at_ms) * self._per_ms)
        return int(self._burst), max(0, int(tokens)), math.ceil((self._burst - tokens) / self._per_ms)

    def take(self, owner_id: str, count: int = 1) -> None:
        """So many of this one. Raises TooManyRequests, saying when they are let in. More than a burst at once are let
        in when the bucket is full, and paid for afterwards."""
        if not self._per_ms:
            return
        now_ms = self._clock.now_ms()
        tokens, at_ms = self._buckets.pop(owner_id, (self._burst, now_ms))
        tokens = min(self._burst, tokens + max(0, now_ms - at_ms) * self._per_ms)  # a clock may be set back
        needed = min(float(count), self._burst)
        allowed = tokens >= needed
        self._buckets[owner_id] = (tokens - count if allowed else tokens, now_ms)
        if len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)  # the one that was silent for longest: its bucket is the fullest
        if not allowed:
            wait_ms = max(1, math.ceil((needed - tokens) / self._per_ms))
            raise TooManyRequests(
                f"more than {self._per_ms * 1000:g} {self._what} a second {self._whose} (a burst of {self._burst:g} "
                f"is used up); ask again in {wait_ms} ms",
                retry_after_ms=wait_ms,
            )
