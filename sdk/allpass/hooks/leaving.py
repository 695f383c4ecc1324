"""When a script leaves that saves at moments of its own alone."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any, Callable

PATIENCE_S = 25.0  # that it is waited for a save, once it is to leave: `torchrun` kills after 30


class Leaving:
    """SIGTERM is a request from `listen` on, for a script that does not heed it itself. It ends the process all the
    same where nothing is saved in time."""

    def __init__(self, comes_soon: "Callable[[], bool]") -> None:
        self.is_asked = False
        self._comes_soon = comes_soon
        self._is_over = False
        self._listens = False

    def listen(self) -> None:
        if not self._listens and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._heard)
            self._listens = True

    def end(self) -> None:
        if self._listens and signal.getsignal(signal.SIGTERM) == self._heard:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._listens = False

    def _heard(self, number: int, frame: Any) -> None:
        if self._is_over or not self._comes_soon():
            self.end()
            os.kill(os.getpid(), signal.SIGTERM)
        elif not self.is_asked:
            self.is_asked = True
            waiting = threading.Timer(PATIENCE_S, self._stop_waiting)
            waiting.daemon = True
            waiting.start()

    def _stop_waiting(self) -> None:
        self._is_over = True
        os.kill(os.getpid(), signal.SIGTERM)
