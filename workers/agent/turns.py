"""One at a time, for each thing: whoever would fetch what somebody else is fetching waits, and finds it."""

from __future__ import annotations

import contextlib
import threading
from typing import Dict, Hashable, Iterator

from workers.agent.errors import Aborted


class Turns:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: Dict[Hashable, threading.Event] = {}  # guarded; set when whoever took it is through

    @contextlib.contextmanager
    def turn(self, key: Hashable, gone: threading.Event) -> Iterator[None]:
        """Raises Aborted, without having had its turn, once `gone` is set."""
        mine = threading.Event()
        while True:
            with self._lock:
                other = self._taken.setdefault(key, mine)
            if other is mine:
                break
            while not other.wait(0.05):
                if gone.is_set():
                    raise Aborted("no longer wanted")
        try:
            yield
        finally:
            with self._lock:
                del self._taken[key]
            mine.set()

    def is_taken(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._taken
