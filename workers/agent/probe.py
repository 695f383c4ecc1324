"""How fast this machine downloads from the service, measured once while it joins: some megabytes, some seconds at most.

What is read is thrown away. The first part is not counted: a connection gets faster while it begins.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, Optional

from workers.agent.api import Api
from workers.agent.errors import AgentError

LIMIT_S = 5.0
_UNCOUNTED = 4  # the first quarter
_BLOCK = 65_536


class Probe:
    """`on_over` is called once, from its own thread, with words for the events, where something was measured."""

    def __init__(self, size_bytes: int, on_over: Callable[[str], None], limit_s: float = LIMIT_S) -> None:
        self._size_bytes = size_bytes
        self._on_over = on_over
        self._limit_s = limit_s
        self._facts: Dict[str, Any] = {}
        self._thread: Optional[threading.Thread] = None

    def start(self, api: Api) -> None:
        """Returns at once. The machine has joined."""
        if self._size_bytes > 0:
            self._thread = threading.Thread(target=self._work, args=(api,), name="probe", daemon=True)
            self._thread.start()

    def facts(self) -> Dict[str, Any]:
        """What was measured; nothing before it was."""
        return self._facts

    def _work(self, api: Api) -> None:
        try:
            counted, ms = self._measure(api)
        except (AgentError, OSError):  # a service of the release before, or one that has other things to do
            return
        if counted > 0 and ms > 0:
            self._facts = {"download": {"bytes": counted, "ms": ms}}
            self._on_over(f"it downloads {counted * 8 / ms / 1000:.1f} Mbit/s from this service")

    def _measure(self, api: Api) -> "tuple[int, int]":
        """Bytes that count, and how long they took."""
        uncounted, read, began = self._size_bytes // _UNCOUNTED, 0, time.monotonic()
        counted_from_s, counted = began, 0
        until = began + self._limit_s
        with api.probe(self._size_bytes, timeout_s=self._limit_s) as answer:
            while read < self._size_bytes and time.monotonic() < until:
                block = answer.read(_BLOCK)
                if not block:
                    break
                read += len(block)
                if read <= uncounted:
                    counted_from_s = time.monotonic()
                else:
                    counted += len(block)
        if not counted:  # so slow that it never got beyond the beginning
            counted, counted_from_s = read, began
        return counted, max(1, round(1000 * (time.monotonic() - counted_from_s)))
