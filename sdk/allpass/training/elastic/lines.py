"""What the first processes of the machines of one training say to each other, beside their gradients: a connection of
each further machine to the first one, with an object of JSON per line.

A process that ends closes its line, which the other end hears at once; a machine that is lost without a word is heard
of by its silence, since both ends say something every few seconds."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Any, Dict, Optional

from allpass.training.elastic.stillness import LEAST_S

BEAT_S = 2.0
QUIET_S = LEAST_S  # without a word: that machine, or the way to it, is gone. A large file may hold all threads for long
_LONGEST = 4 * 2**20  # bytes of a line


class Line:
    """One end. It may be told from several threads, and is heard from one."""

    def __init__(self, link: socket.socket) -> None:
        link.settimeout(None)
        with contextlib.suppress(OSError):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link = link
        self._file = link.makefile("rb")
        self._lock = threading.Lock()
        self.quiet_s = 0.0  # since anything was heard

    def tell(self, **words: Any) -> None:
        """Where nobody hears it any more, `hear` says so."""
        data = json.dumps(words).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._link.sendall(data)

    def hear(self, longest: int = _LONGEST) -> Optional[Dict[str, Any]]:
        """The next that is said; None once the other end is gone, or says what is no object, or too long a one."""
        try:
            told = json.loads(self._file.readline(longest))
        except (OSError, ValueError, RecursionError):
            return None
        self.quiet_s = 0.0
        return told if isinstance(told, dict) else None

    def hear_within(self, timeout_s: float, longest: int = _LONGEST) -> Optional[Dict[str, Any]]:
        """The same, of one that may be anybody: who has not said it by then, however slowly it goes on, is cut off."""
        timer = threading.Timer(timeout_s, self._shut)
        timer.daemon = True
        timer.start()
        try:
            return self.hear(longest)
        finally:
            timer.cancel()

    def hang_up(self) -> None:
        """Nothing more is said from here; what was is still heard there."""
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_WR)

    def _shut(self) -> None:
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._shut()
        with contextlib.suppress(OSError):
            self._file.close()
        self._link.close()
