"""How uvicorn serves the API: settings that the server process and its benchmark share."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():
            self._transport.write(held)


class OneWriteProtocol(HttpToolsProtocol):
    """HTTP/1.1 over such a transport."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # its stub is wider
        super().connection_made(cast(asyncio.Transport, OneWrite(transport, self.loop)))


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
