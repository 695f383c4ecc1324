"""Server-sent events: an answer that lasts as long as somebody listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from fastapi import Response
from starlette.types import Receive, Scope, Send

ALIVE = b": still there\n\n"
_RETRY = b"retry: 1000\n\n"
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class EventStream(Response):
    """Sends the parts until there are no more, the client is gone, or the longest time is over; the latter two call
    `leave`, which makes the parts end. What a slow client has not taken is not piled up: the next part is asked for
    when the last one is out."""

    media_type = "text/event-stream"

    def __init__(
        self, parts: AsyncGenerator[bytes, None], leave: Callable[[], None], longest_s: float, *, begins: bytes = _RETRY
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._parts = parts
        self._leave = leave
        self._longest_s = longest_s
        self._begins = begins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(self._until_gone(receive))
        until = asyncio.get_running_loop().call_later(self._longest_s, self._leave)
        try:
            await self._send_all(send)
        except OSError:
            return  # the client is gone: nobody is left to tell
        finally:
            until.cancel()
            gone.cancel()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._begins, "more_body": True})
        async with aclosing(self._parts) as parts:
            async for part in parts:
                await send({"type": "http.response.body", "body": part or ALIVE, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        self._leave()
