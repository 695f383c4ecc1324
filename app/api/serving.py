"""How uvicorn serves the API: settings that the server process and its benchmark share."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.api.errors import NO_REQUEST_ID, unreadable_request

MAX_URL_BYTES = 16 * 1024
MAX_HEADERS_BYTES = 64 * 1024
_MAX_WAITING_BYTES = 512 * 1024  # of a head that has no end yet: a limit and what is read at once
_LINGER_S = 1.0
_REASONS = {400: b"Bad Request", 414: b"URI Too Long", 431: b"Request Header Fields Too Large"}


class OneWrite:
    """A transport that holds a write back until the next one, or until the loop turns, and then sends both at once.

    uvicorn writes an answer's head and its body apart: two system calls and two packets, each of which wakes the
    client. They are the dearest part of a small answer.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""

    def write(self, data: bytes) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held + data)
        elif data:
            self._held = data
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():
            self._transport.write(held)


class _Refused(Exception):
    """The parser passes it on as an error of its own."""


class OneWriteProtocol(HttpToolsProtocol):
    """HTTP/1.1 over such a transport, with a limit to the head of a request, which nothing else has: the parser would
    take it for as long as it comes. What cannot be served is answered in the form of every error of the API."""

    _url_bytes = _headers_bytes = _waiting_bytes = 0
    _in_head = _refused = False
    _refusal = 400, "this is not an HTTP/1.1 request that can be read"

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # its stub is wider
        super().connection_made(cast(asyncio.Transport, OneWrite(transport, self.loop)))

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        self._waiting_bytes = self._waiting_bytes + len(data) if self._in_head else 0
        if self._waiting_bytes > _MAX_WAITING_BYTES and not self._refused:
            self._refusal = _too_large_headers()
            self.send_400_response("")

    def on_message_begin(self) -> None:
        self._url_bytes = self._headers_bytes = 0
        self._in_head = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._url_bytes += len(url)
        if self._url_bytes > MAX_URL_BYTES:
            self._refuse(414, f"the URL is longer than {MAX_URL_BYTES} bytes; shorten its query")
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers_bytes += len(name) + len(value)
        if self._headers_bytes > MAX_HEADERS_BYTES:
            self._refuse(*_too_large_headers())
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Called for what the parser refuses, too. The connection ends: nobody knows where the next request begins.
        What still comes is read for a moment and dropped, or the peer would see a reset in place of the answer."""
        status, message = self._refusal
        content = unreadable_request(status, message)
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"x-request-id: %b\r\nconnection: close\r\n\r\n%b"
            % (status, _REASONS[status], len(content), NO_REQUEST_ID.encode(), content)
        )
        self.transport.write_eof()
        self._refused = True
        self.loop.call_later(_LINGER_S, self.transport.close)

    def _refuse(self, status: int, message: str) -> None:
        self._refusal = status, message
        raise _Refused


def _too_large_headers() -> tuple[int, str]:
    return 431, f"the headers are larger than {MAX_HEADERS_BYTES} bytes; leave out what the service does not read"


def serving_options() -> dict[str, Any]:
    """Keyword arguments of `uvicorn.run`. The service names its own address in its settings, so that it believes no
    forwarding header; an answer carries no header that nobody reads."""
    return {
        "http": OneWriteProtocol,
        "log_level": "warning",
        "access_log": False,
        "proxy_headers": False,
        "server_header": False,
        "date_header": False,
    }
