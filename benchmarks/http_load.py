"""A lean HTTP/1.1 load generator: keep-alive connections, one request at a time on each, every answer checked."""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import sys
import time
from collections.abc import Callable
from typing import cast

import uvloop

_CREATED = b"HTTP/1.1 201"
_LENGTH = b"content-length: "
_PATIENCE_S = 30.0  # a server that hangs ends the benchmark


class _Caller(asyncio.Protocol):
    """Sends, waits for the whole answer, sends again until the time is up."""

    def __init__(self, request: Callable[[], bytes], until: float, done: asyncio.Future[int]) -> None:
        self._request = request
        self._until = until
        self._done = done
        self._answers = 0
        self._held = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its bases
        self._transport.write(self._request())

    def data_received(self, data: bytes) -> None:
        held = self._held + data if self._held else data
        end = held.find(b"\r\n\r\n")
        start = held.find(_LENGTH)
        if end < 0 or len(held) < end + 4 + int(held[start + len(_LENGTH) : held.index(b"\r", start)]):
            self._held = held
            return
        self._held = b""
        assert self._transport is not None
        if not held.startswith(_CREATED):
            self._fail(RuntimeError(f"not a 201: {held[:600]!r}"))
            return
        self._answers += 1
        if time.perf_counter() < self._until:
            self._transport.write(self._request())
        else:
            self._transport.close()
            if not self._done.done():
                self._done.set_result(self._answers)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(error or ConnectionError("the server closed the connection"))

    def _fail(self, error: Exception) -> None:
        if not self._done.done():
            self._done.set_exception(error)


async def measure(port: int, request: Callable[[], bytes], *, callers: int, seconds: float) -> float:
    """Answers per second that `callers` concurrent callers get. Raises when any answer is not a 201."""
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    futures = [loop.create_future() for _ in range(callers)]
    for future in futures:
        await loop.create_connection(
            # mypy cannot infer a lambda with a default.
            lambda done=future: _Caller(request, started + seconds, done),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
    async with asyncio.timeout(seconds + _PATIENCE_S):
        answers: int = sum(await asyncio.gather(*futures))
    return answers / (time.perf_counter() - started)


def main() -> None:
    """Arguments as one JSON object (`head` ends where the number of the request belongs); prints the rate.

    A first run warms up.
    """
    given = json.loads(sys.argv[1])
    head, body, seconds = given["head"].encode(), given["body"].encode(), given["seconds"]
    prefix = secrets.token_hex(8).encode()
    numbers = itertools.count()

    def request() -> bytes:
        return b"%b%b-%d\r\n\r\n%b" % (head, prefix, next(numbers), body)

    uvloop.run(measure(given["port"], request, callers=given["callers"], seconds=min(1.0, seconds)))
    rate = uvloop.run(measure(given["port"], request, callers=given["callers"], seconds=seconds))
    print(json.dumps({"rate": rate}))


if __name__ == "__main__":
    main()
