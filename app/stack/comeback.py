"""When a part of the stack that ended by itself is started again: at once, then after pauses that grow."""

from __future__ import annotations

import time
from collections.abc import Callable

PAUSES_S = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
SETTLED_S = 20.0


class Comeback:
    """The tries for one part. There are never more than its pauses allow, and so are the lines about them."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._tries = 0
        self._next_try = 0.0
        self._lives_since: float | None = None
        self._is_down = False

    def lives(self) -> None:
        """It runs. After a while of that, its next end is its first."""
        if self._lives_since is None:
            self._lives_since, self._is_down = self._monotonic(), False
        elif self._monotonic() - self._lives_since >= SETTLED_S:
            self._tries = 0

    def ended(self) -> float | None:
        """It does not run: the pause before the next try, in seconds, when that is news; else None."""
        if self._is_down:
            return None
        self._is_down, self._lives_since = True, None
        pause_s = PAUSES_S[min(self._tries, len(PAUSES_S) - 1)]
        self._tries += 1
        self._next_try = self._monotonic() + pause_s
        return pause_s

    def is_due(self) -> bool:
        """Whether it is to be tried now."""
        return self._is_down and self._monotonic() >= self._next_try

    def tried(self) -> None:
        """What comes of this try is news again: that it lives, or that it has ended."""
        self._is_down = False
