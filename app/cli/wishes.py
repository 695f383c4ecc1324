"""What whoever runs a command wants by its signals: the first one ends it, a second one hurries it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopSignals:
    """For the main thread of a process that ends soon after.

    SIGINT, SIGTERM and SIGHUP (the terminal is gone) interrupt it once, with KeyboardInterrupt. Later ones never do:
    `hurried` is true after a second SIGINT or SIGTERM. A signal that was ignored from the start, as by `nohup`, stays
    so.
    """

    def __init__(self) -> None:
        self.hurried = False
        self._is_heard = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        """From here on. Inside the block the first signal interrupts; one that comes after it only hurries."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number is signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._hear)
        try:
            yield
        finally:
            self._is_heard = True

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if not self._is_heard:
            self._is_heard = True
            raise KeyboardInterrupt
        self.hurried = self.hurried or number != signal.SIGHUP
