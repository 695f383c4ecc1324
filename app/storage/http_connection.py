"""HTTP/1.1 over one blocking socket: heads are read and written by h11, bodies pass by it.

A body is received into one buffer, which is used again for each block, and a file is sent by the kernel (sendfile). So
the bytes of an object are copied no more often than it takes to hash and to write them. All methods block: a connection
has a thread of its own.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Protocol

import h11

from app.errors import AllpassError, UserError

_log = logging.getLogger(__name__)
BODY_INCOMPLETE = "body_incomplete"
BODY_STALLED = "body_stalled"
HEAD_MALFORMED = "request_malformed"
HEAD_TOO_LARGE = "request_head_too_large"
BLOCK_BYTES = 1024 * 1024
HEAD_BYTES = 16 * 1024
KEPT_ALIVE_S = 75.0
_UNWANTED_BYTES = 64 * 1024 * 1024  # of a body that was refused: so much is read, for a client that sends it all first
_PARTING_S = 2.0


@dataclass(frozen=True, slots=True)
class Request:
    """`headers` by name in lower case. `body` can be read once."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: Body


@dataclass(frozen=True, slots=True)
class FileSlice:
    """`length` bytes of an open file, from `start` on. The file is closed when they were sent."""

    file: IO[bytes]
    start: int
    length: int

    def __len__(self) -> int:
        return self.length


@dataclass(frozen=True, slots=True)
class Reply:
    """The length of `content` is told, and of that to HEAD nothing else is sent."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | FileSlice = b""


class Answers(Protocol):
    """Who knows what is served. Neither raises."""

    def answer(self, request: Request) -> Reply: ...

    def refuse(self, error: AllpassError) -> Reply: ...


class Connection:
    """Answers what one client asks, until it leaves, is silent for too long or breaks the rules."""

    def __init__(self, peer: socket.socket, answers: Answers, *, idle_timeout_s: float) -> None:
        self._peer = peer
        self._answers = answers
        self._idle_timeout_s = idle_timeout_s
        self._ahead = b""  # received, and not read yet
        self.is_idle = True  # between two requests: nobody misses it

    def serve(self) -> None:
        """Return when the connection is over; it is closed then."""
        with self._peer, contextlib.suppress(OSError):
            self._peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while self._serve_one():
                self.is_idle = True
            self._part()

    def end(self) -> None:
        """From another thread: whatever it does or waits for fails at once."""
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)

    def turn_away(self, error: AllpassError) -> None:
        """Say why, read nothing, and close."""
        with self._peer, contextlib.suppress(OSError):
            self._peer.setblocking(False)
            reply = self._answers.refuse(error)
            assert isinstance(reply.content, bytes)
            self._peer.send(_head(h11.Connection(h11.SERVER), reply) + reply.content)

    def receive(self, block: memoryview) -> int:
        """As many bytes as there are, into `block`; 0 when no more will come. Raises TimeoutError, OSError."""
        if self._ahead:
            count = min(len(block), len(self._ahead))
            block[:count], self._ahead = self._ahead[:count], self._ahead[count:]
            return count
        self._peer.settimeout(self._idle_timeout_s)
        return self._peer.recv_into(block)

    def say_go_on(self) -> None:
        """To a client that asks before it sends its body."""
        self._peer.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _serve_one(self) -> bool:
        """One request and its answer; False when no other can follow."""
        protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        try:
            head = self._receive_head(protocol)
        except h11.RemoteProtocolError as error:
            code = HEAD_TOO_LARGE if error.error_status_hint == 431 else HEAD_MALFORMED
            self._send(protocol, self._answers.refuse(UserError(f"this is no request of HTTP/1.1: {error}", code=code)))
            return False
        if head is None:
            return False
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        body = Body(self, headers, is_awaited=protocol.they_are_waiting_for_100_continue)
        asked = Request(head.method.decode("latin-1"), head.target.decode("latin-1"), headers, body)
        self._send(protocol, self._answers.answer(asked), is_head=asked.method == "HEAD")
        return protocol.our_state is h11.DONE and body.skip()

    def _receive_head(self, protocol: h11.Connection) -> h11.Request | None:
        """None when the client has left. Raises RemoteProtocolError; TimeoutError, also for a head that trickles in:
        it has no longer than any other silence may last."""
        self._peer.settimeout(KEPT_ALIVE_S)
        data, self._ahead = self._ahead or self._peer.recv(HEAD_BYTES), b""
        until_s = time.monotonic() + self._idle_timeout_s
        while data:
            self.is_idle = False
            protocol.receive_data(data)
            event = protocol.next_event()
            if isinstance(event, h11.Request):
                self._ahead = protocol.trailing_data[0]
                return event
            self._peer.settimeout(max(0.001, until_s - time.monotonic()))
            data = self._peer.recv(HEAD_BYTES)
        return None

    def _send(self, protocol: h11.Connection, reply: Reply, *, is_head: bool = False) -> None:
        """Raises OSError when the client has left or does not read, and when a file ends too early: it then gets an
        unfinished body, and the connection is closed."""
        content = reply.content
        try:
            self._peer.settimeout(self._idle_timeout_s)
            self._peer.sendall(_head(protocol, reply))
            if content and not is_head:
                if isinstance(content, FileSlice):
                    self._send_file(content)
                else:
                    self._peer.sendall(content)
                protocol.send_with_data_passthrough(h11.Data(data=content))  # type: ignore[arg-type]  # it only counts
            protocol.send(h11.EndOfMessage())
        finally:
            if isinstance(content, FileSlice):
                content.file.close()

    def _send_file(self, part: FileSlice) -> None:
        try:
            sent = self._peer.sendfile(part.file, part.start, part.length)
        except TimeoutError:
            _log.warning("gave up on a reader of %s after %g s of silence", part.file.name, self._idle_timeout_s)
            raise
        if sent < part.length:
            _log.error(
                "%s ends at byte %d, %d were expected", part.file.name, part.start + sent, part.start + part.length
            )
            raise ConnectionAbortedError

    def _part(self) -> None:
        """Let the client read our last words: closing while it still sends is a reset, which may overtake them."""
        self._peer.shutdown(socket.SHUT_WR)
        until_s = time.monotonic() + _PARTING_S
        while (left_s := until_s - time.monotonic()) > 0:
            self._peer.settimeout(left_s)
            if not self._peer.recv(BLOCK_BYTES):
                return


def _head(protocol: h11.Connection, reply: Reply) -> bytes:
    headers = [*reply.headers.items(), ("content-length", str(len(reply.content)))]
    return protocol.send(h11.Response(status_code=reply.status, headers=headers)) or b""


class Body:
    """What follows the head of a request. `length`: as the client told it; one in chunks has none, and is not read."""

    def __init__(self, connection: Connection, headers: Mapping[str, str], *, is_awaited: bool) -> None:
        self._connection = connection
        self._is_awaited = is_awaited  # the client sends it once it is told to
        self._is_in_chunks = "transfer-encoding" in headers
        told = None if self._is_in_chunks else headers.get("content-length")
        self.length = None if told is None else int(told)
        self._left = self.length or 0

    def blocks(self) -> Iterator[memoryview]:
        """All of it; each block is gone when the next one is asked for. Raises UserError when it does not come."""
        if self._is_awaited and self._left:
            self._is_awaited = False
            self._connection.say_go_on()
        block = memoryview(bytearray(min(BLOCK_BYTES, self._left)))
        while self._left:
            yield block[: self._receive(block)]

    def skip(self) -> bool:
        """Read what is left; False when a next request cannot be found behind it."""
        if self._is_in_chunks or self._left > _UNWANTED_BYTES or (self._is_awaited and self._left):
            return False
        with contextlib.suppress(UserError):
            for _ in self.blocks():
                pass
        return not self._left

    def _receive(self, block: memoryview) -> int:
        try:
            count = self._connection.receive(block[: self._left])
        except TimeoutError:
            raise UserError("no byte of the body came for a while: upload again", code=BODY_STALLED) from None
        except OSError:
            count = 0
        if not count:
            raise UserError("the connection ended before the body did", code=BODY_INCOMPLETE)
        self._left -= count
        return count
