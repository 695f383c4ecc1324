"""Lambda's limits: about one call a second for the whole account, and a launch every twelve."""

from __future__ import annotations

from collections.abc import Callable

CALL_EVERY_MS, LAUNCH_EVERY_MS = 1_000, 12_000


class CallSpacing:
    """The least time between two calls that are let through, times `speed`."""

    def __init__(self, now_ms: Callable[[], int], speed: float) -> None:
        self._now_ms = now_ms
        self._speed = speed
        self._last_ms: dict[str, int] = {}

    def lets_through(self, *, launch: bool) -> bool:
        """Whether this call comes late enough after the one before it. One that does not leaves no trace."""
        now_ms = self._now_ms()
        lanes = {"call": CALL_EVERY_MS, **({"launch": LAUNCH_EVERY_MS} if launch else {})}
        if any(now_ms - self._last_ms.get(lane, 0) < every_ms * self._speed for lane, every_ms in lanes.items()):
            return False
        self._last_ms |= dict.fromkeys(lanes, now_ms)
        return True
