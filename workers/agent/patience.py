"""Trying again until it works or is no longer wanted."""

from __future__ import annotations

import random
import threading
import time
from typing import Callable, Optional, TypeVar

from workers.agent.errors import Aborted, Unreachable

Result = TypeVar("Result")
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
PAUSE_AT_THE_END_S = 1.0  # of what a run's end waits for, though not for long


class Backoff:
    """Pauses that double up to a cap, each shortened by chance so that many agents do not return at once."""

    def __init__(self, first_s: float = FIRST_PAUSE_S, cap_s: float = LONGEST_PAUSE_S) -> None:
        self._first_s = first_s
        self._cap_s = cap_s
        self._attempts = 0

    def reset(self) -> None:
        self._attempts = 0

    def next_s(self) -> float:
        """Between half of the present pause and all of it; never above the cap."""
        pause_s = min(self._cap_s, self._first_s * float(2 ** min(self._attempts, 16)))
        self._attempts += 1
        return pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing


class Halt(threading.Event):
    """Set by itself, or with `gone`."""

    def __init__(self, gone: threading.Event) -> None:
        super().__init__()
        self._gone = gone

    def is_set(self) -> bool:
        return super().is_set() or self._gone.is_set()

    def wait(self, timeout: Optional[float] = None) -> bool:
        """A pause that `gone` ends at once."""
        return self._gone.wait(timeout) or self.is_set()


class Respite:
    """Time for something that nobody is to be kept waiting for. It does not run while `is_away` says so: then whoever
    waits could not be told anyway."""

    def __init__(self, limit_s: float, is_away: Callable[[], bool]) -> None:
        self._left_s = limit_s
        self._is_away = is_away
        self._looked_s = time.monotonic()

    def is_over(self) -> bool:
        """To be asked often."""
        now_s = time.monotonic()
        if not self._is_away():
            self._left_s -= now_s - self._looked_s
        self._looked_s = now_s
        return self._left_s <= 0


def patiently(call: Callable[[], Result], gone: threading.Event, *, longest_s: float = LONGEST_PAUSE_S) -> Result:
    """The result of `call`, tried until it is not Unreachable. Raises Aborted as soon as `gone` is set."""
    backoff = Backoff(cap_s=longest_s)
    while True:
        if gone.is_set():
            raise Aborted("no longer wanted")
        try:
            return call()
        except Unreachable:
            if gone.wait(backoff.next_s()):
                raise Aborted("no longer wanted") from None
