"""A thread for each connection: made for few clients that send and fetch much."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time

from app.errors import StoreUnavailable
from app.storage.http_connection import Answers, Connection

_log = logging.getLogger(__name__)
MOST_CONNECTIONS = 1000
BUSY = "store_busy"
_LOOK_S = 0.5  # where closing a listener wakes nobody
_BREATH_S = 0.1


class HttpServer:
    """Serves what `listener` is called for, from `start` until `close`, which closes it too."""

    def __init__(
        self,
        listener: socket.socket,
        answers: Answers,
        *,
        idle_timeout_s: float,
        most_connections: int = MOST_CONNECTIONS,
    ) -> None:
        self._listener = listener
        self._answers = answers
        self._idle_timeout_s = idle_timeout_s
        self._most_connections = most_connections
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._live: dict[Connection, threading.Thread] = {}  # guarded by the lock
        self._thread = threading.Thread(target=self._accept_all, name="accept", daemon=True)

    def start(self) -> None:
        self._listener.settimeout(_LOOK_S)
        self._thread.start()

    def close(self, grace_s: float) -> None:
        """Take no more requests; those under way have so long to end."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        until_s = time.monotonic() + grace_s
        while (live := self._busy()) and time.monotonic() < until_s:
            live[0].join(min(_BREATH_S, grace_s))
        with self._lock:
            left = dict(self._live)
        for connection in left:
            connection.end()
        for thread in left.values():
            thread.join()

    def _busy(self) -> list[threading.Thread]:
        """Those in the middle of a request. The others are ended."""
        with self._lock:
            live = dict(self._live)
        for connection in live:
            if connection.is_idle:
                connection.end()
        return [thread for connection, thread in live.items() if not connection.is_idle]

    def _accept_all(self) -> None:
        while not self._closing.is_set():
            try:
                peer, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError as error:
                if not self._closing.is_set():
                    _log.warning("cannot take a connection: %s", error)  # no descriptor is left, say
                    self._closing.wait(_BREATH_S)
                continue
            self._serve(peer)

    def _serve(self, peer: socket.socket) -> None:
        """In a thread of its own, if there may be another one."""
        connection = Connection(peer, self._answers, idle_timeout_s=self._idle_timeout_s)
        thread = threading.Thread(target=self._serve_all, args=(connection,), name="connection", daemon=True)
        with self._lock:
            is_one_too_many = len(self._live) >= self._most_connections
            if not is_one_too_many:
                self._live[connection] = thread
        if is_one_too_many:
            connection.turn_away(StoreUnavailable("too many connections at once: try again in a while", code=BUSY))
            return
        try:
            thread.start()
        except RuntimeError as error:  # the system gives no more threads
            _log.warning("cannot serve a connection: %s", error)
            peer.close()
            self._forget(connection)

    def _serve_all(self, connection: Connection) -> None:
        try:
            connection.serve()
        finally:
            self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        with self._lock:
            self._live.pop(connection, None)
