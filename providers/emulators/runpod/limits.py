"""RunPod's limit of calls: 60 a minute for each account. The windows of an hour and a day are not played."""

from __future__ import annotations

from collections.abc import Callable

CALLS, WINDOW_MS = 60, 60_000


class RequestWindow:
    """A window that begins with its first call, and lasts a minute times `speed`."""

    def __init__(self, now_ms: Callable[[], int], speed: float) -> None:
        self._now_ms = now_ms
        self._window_ms = WINDOW_MS * speed
        self._begun_ms = 0
        self._calls = 0

    def wait_ms(self) -> int:
        """0 for a call that is let through; else how long the window still lasts."""
        now_ms = self._now_ms()
        if now_ms - self._begun_ms >= self._window_ms:
            self._begun_ms, self._calls = now_ms, 0
        if self._calls >= CALLS:
            return max(1, round(self._begun_ms + self._window_ms - now_ms))
        self._calls += 1
        return 0
