"""The emulated Vast.ai's limits: a minimum interval per endpoint and method."""

from __future__ import annotations

from collections.abc import Callable

from providers.emulators.switches import Switches
from providers.emulators.vast.errors import TooFast

INTERVALS_S = {
    "create": 4.5,
    "show": 2.0,
    "list": 1.0,
    "destroy": 3.0,
    "change": 1.0,
    "bid": 5.5,
    "logs": 1.0,
    "execute": 1.5,
    "charges": 1.0,
}
_SEARCHES, _SEARCH_WINDOW_S = 10, 60.0
_CREATE_PENALTY_S = 12.0  # one that is too fast closes the endpoint for so long


class RequestLimits:
    """`check` raises TooFast. Switched off it counts nothing, and forgets."""

    def __init__(self, switches: Switches, *, speed: float, now_ms: Callable[[], int]) -> None:
        self._switches = switches
        self._speed = speed
        self._now_ms = now_ms
        self._open_at_ms: dict[str, float] = {}
        self._searches: list[int] = []

    def check(self, endpoint: str) -> None:
        """One call of this endpoint arrives."""
        mode = self._switches["rate_limits"]
        if mode not in {"on", "scaled"}:
            self._open_at_ms.clear()
            self._searches.clear()
            return
        scale = (1.0 if mode == "on" else self._speed) * 1000
        if endpoint == "search":
            self._search(scale)
        elif endpoint in INTERVALS_S:
            self._interval(endpoint, scale)

    def _interval(self, endpoint: str, scale: float) -> None:
        now_ms, every_s = self._now_ms(), INTERVALS_S[endpoint]
        if now_ms < self._open_at_ms.get(endpoint, 0):
            if endpoint == "create":
                self._open_at_ms[endpoint] = now_ms + _CREATE_PENALTY_S * scale
            raise TooFast(self._switches["limit_shape"], f"API requests too frequent: endpoint threshold={every_s}")
        self._open_at_ms[endpoint] = now_ms + every_s * scale

    def _search(self, scale: float) -> None:
        now_ms = self._now_ms()
        self._searches = [at_ms for at_ms in self._searches if at_ms > now_ms - _SEARCH_WINDOW_S * scale]
        if len(self._searches) >= _SEARCHES:
            raise TooFast(self._switches["limit_shape"], "API requests too frequent: 10 searches per minute")
        self._searches.append(now_ms)
