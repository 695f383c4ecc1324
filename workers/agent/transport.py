"""HTTP over the standard library: kept-alive connections, proxies of the machine, a timeout on every call."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
import sys
import threading
from typing import Dict, Iterable, Iterator, List, Mapping, Optional, Set, Tuple, Union
from urllib.parse import SplitResult, urlsplit

from workers.agent.errors import Full, Unreachable


class FileBody:
    """A body that is read from files, and may be sent again: without a copy where the connection allows it."""

    def blocks(self) -> Iterator[bytes]:
        raise NotImplementedError

    def send(self, connection: socket.socket) -> None:
        raise NotImplementedError


Body = Union[bytes, Iterable[bytes], FileBody, None]
LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
NO_ROOM = 507
_IDLE_PER_HOST = 4


class Answer:
    """A response being read. Trouble while reading is Unreachable, unlike trouble of whoever uses the bytes."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self.status = response.status

    def read(self, amount: Optional[int] = None) -> bytes:
        try:
            return self._response.read(amount)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"the connection broke: {error}") from error

    def readinto(self, block: memoryview) -> int:
        """As many bytes as came, at most as many as there is room for; 0 at the end."""
        try:
            return self._response.readinto(block)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"the connection broke: {error}") from error


class Transport:
    """Shared by all threads: each exchange has its own connection for as long as it lasts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the three below
        self._idle: Dict[Tuple[str, str], List[http.client.HTTPConnection]] = {}
        self._live: Set[http.client.HTTPConnection] = set()
        self._closed = False
        self._tls_lock = threading.Lock()
        self._tls: Optional[ssl.SSLContext] = None

    @contextlib.contextmanager
    def exchange(
        self, method: str, url: str, *, headers: Mapping[str, str], body: Body = None, timeout_s: float
    ) -> Iterator[Answer]:
        """Send one request and lend its answer. Raises Unreachable for lost connections and "later" statuses.

        `body` as an iterable needs a Content-Length among `headers`. A kept connection that the other side has
        closed meanwhile is replaced once, silently: every request of ours may be repeated.
        """
        parts = urlsplit(url)
        streams = body is not None and not isinstance(body, (bytes, FileBody))
        kept = None if streams else self._take_idle(parts)
        connection = kept or self._open(parts)
        try:
            try:
                response = self._send(connection, method, parts, headers, body, timeout_s)
            except Unreachable:
                if kept is None:
                    raise
                self._drop(connection)
                connection = self._open(parts)
                response = self._send(connection, method, parts, headers, body, timeout_s)
            yield _checked(response, parts)
        except BaseException:
            self._drop(connection)
            raise
        self._give_back(parts, connection, reusable=response.isclosed())

    def close(self) -> None:
        """Break every exchange, at once, in whichever thread it waits."""
        with self._lock:
            self._closed = True
            live = list(self._live)
            idle = [connection for kept in self._idle.values() for connection in kept]
            self._idle.clear()
        for connection in live:
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
        for connection in idle:
            connection.close()

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        parts: SplitResult,
        headers: Mapping[str, str],
        body: Body,
        timeout_s: float,
    ) -> http.client.HTTPResponse:
        try:
            connection.timeout = timeout_s
            if connection.sock is None:
                connection.connect()
                self._check_open()  # `close` breaks what is connected, and may have come before
            connection.sock.settimeout(timeout_s)
            # A server that refuses an upload half-way may answer and hang up: its answer says more than the pipe.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                _request(connection, method, parts, headers, body)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{parts.netloc} does not answer: {error}") from error

    def _take_idle(self, parts: SplitResult) -> Optional[http.client.HTTPConnection]:
        with self._lock:
            kept = self._idle.get((parts.scheme, parts.netloc))
            if not kept or self._closed:
                return None
            connection = kept.pop()
            self._live.add(connection)
            return connection

    def _open(self, parts: SplitResult) -> http.client.HTTPConnection:
        connection = _connection(parts, self._trust() if parts.scheme == "https" else None)
        with self._lock:
            if self._closed:
                raise Unreachable("the agent is leaving")
            self._live.add(connection)
        return connection

    def _check_open(self) -> None:
        with self._lock:
            if self._closed:
                raise Unreachable("the agent is leaving")

    def _trust(self) -> ssl.SSLContext:
        """Whom we believe. Reading all those certificates takes a while, so only who needs them does."""
        with self._tls_lock:
            if self._tls is None:
                self._tls = ssl.create_default_context()
            return self._tls

    def _drop(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._live.discard(connection)
        connection.close()

    def _give_back(self, parts: SplitResult, connection: http.client.HTTPConnection, *, reusable: bool) -> None:
        with self._lock:
            self._live.discard(connection)
            kept = self._idle.setdefault((parts.scheme, parts.netloc), [])
            if reusable and not self._closed and connection.sock is not None and len(kept) < _IDLE_PER_HOST:
                kept.append(connection)
                return
        connection.close()


def _request(
    connection: http.client.HTTPConnection, method: str, parts: SplitResult, headers: Mapping[str, str], body: Body
) -> None:
    if not isinstance(body, FileBody) or isinstance(connection.sock, ssl.SSLSocket):
        content = body.blocks() if isinstance(body, FileBody) else body
        connection.request(method, _target(parts), body=content, headers=dict(headers))
        return
    connection.putrequest(method, _target(parts))
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    body.send(connection.sock)


def _checked(response: http.client.HTTPResponse, parts: SplitResult) -> Answer:
    if response.status == NO_ROOM:
        raise Full(f"{parts.netloc} has no room left for it: its operator has to make some, and it is sent again then")
    if response.status in LATER:
        raise Unreachable(f"{parts.netloc} answered {response.status}")
    return Answer(response)


def _proxy(parts: SplitResult) -> Optional[SplitResult]:
    if sys.platform != "darwin" and not any(name.lower().endswith("_proxy") for name in os.environ):
        return None  # as the next lines would find out, which take a large import
    import urllib.request

    address = urllib.request.getproxies().get(parts.scheme)
    if not address or urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urlsplit(address if "://" in address else f"http://{address}")


def _connection(parts: SplitResult, tls: Optional[ssl.SSLContext]) -> http.client.HTTPConnection:
    proxy = _proxy(parts)
    secure = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if secure else 80)
    if proxy is not None:
        proxy_host, proxy_port = proxy.hostname or "", proxy.port or 3128
        if not secure:
            return http.client.HTTPConnection(proxy_host, proxy_port)
        tunnel = http.client.HTTPSConnection(proxy_host, proxy_port, context=tls)
        tunnel.set_tunnel(host, port)
        return tunnel
    if secure:
        return http.client.HTTPSConnection(host, port, context=tls)
    return http.client.HTTPConnection(host, port)


def _target(parts: SplitResult) -> str:
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if parts.scheme == "http" and _proxy(parts) is not None:
        return f"http://{parts.netloc}{path}"
    return path
