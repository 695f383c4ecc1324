"""How `AsyncClient` performs the steps of a flow: with asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import TYPE_CHECKING

import httpx

from allpass.calls import Call, Reply
from allpass.client.setup import DEFAULT_TIMEOUT_S, NO_PROXY, answer_of, connection_for, request_of
from allpass.http import (
    Answer,
    Emit,
    Flow,
    Item,
    ItemFlow,
    Open,
    Pause,
    Protocol,
    Result,
    Retries,
    Step,
    Store,
    Take,
    httpx_timeout,
    is_stream,
)

if TYPE_CHECKING:
    from typing_extensions import Self


class Awaited:
    """Everything that `AsyncClient` does on the network. Its methods only say which flow they are."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._protocol = Protocol(connection_for(url, api_key), timeout_s, retries or Retries())
        self._http = httpx.AsyncClient(transport=transport, mounts=dict(NO_PROXY), follow_redirects=False)
        self._clock = clock

    @property
    def url(self) -> str:
        """The server's address."""
        return self._protocol.connection.url

    async def aclose(self) -> None:
        """Give the connections back. Closing twice is harmless."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _call(self, call: Call[Reply]) -> Reply:
        return await self._run(self._protocol.exchange(call))

    async def _run(self, flow: Flow[Result]) -> Result:
        stream = _Stream(self._http)
        try:
            step = next(flow)
            while True:
                try:
                    result = await self._perform(step, stream)
                except (httpx.TransportError, OSError) as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration as end:
            finished: Result = end.value
            return finished
        finally:
            await stream.aclose()

    async def _each(self, flow: ItemFlow[Item]) -> AsyncIterator[Item]:
        stream = _Stream(self._http)
        try:
            step = next(flow)
            while True:
                if isinstance(step, Emit):
                    yield step.item
                    step = flow.send(None)
                    continue
                try:
                    result = await self._perform(step, stream)
                except (httpx.TransportError, OSError) as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration:
            return
        finally:
            flow.close()
            await stream.aclose()

    async def _perform(self, step: Step, stream: _Stream) -> Answer | bytes | None:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        if isinstance(step, Open):
            return await stream.open(step)
        if isinstance(step, Take):
            return await stream.take()
        if isinstance(step, Store):
            return await self._store(step)
        return answer_of(await self._http.send(request_of(self._http, step)))

    async def _store(self, step: Store) -> Answer:
        async with self._http.stream("GET", step.url, timeout=httpx_timeout(step.timeout_s)) as response:
            if response.status_code != 200:
                await response.aread()
                return answer_of(response)
            try:
                await asyncio.to_thread(step.sink.open)
                async for chunk in response.aiter_bytes():
                    await asyncio.to_thread(step.sink.write, chunk)
                await asyncio.to_thread(step.sink.commit)
            finally:
                step.sink.discard()
        return Answer(200, response.headers, b"")


class _Stream:
    """The answer that a flow reads while it is being written: at most one at a time."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._response: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None

    async def open(self, step: Open) -> Answer:
        await self.aclose()
        response = await self._http.send(request_of(self._http, step), stream=True)
        if is_stream(response.status_code, response.headers):
            self._response, self._chunks = response, response.aiter_bytes()
            return Answer(200, response.headers, b"")
        try:
            await response.aread()
        finally:
            await response.aclose()
        return answer_of(response)

    async def take(self) -> bytes:
        return b"" if self._chunks is None else await anext(self._chunks, b"")

    async def aclose(self) -> None:
        if self._response is not None:
            await self._response.aclose()
            self._response, self._chunks = None, None
