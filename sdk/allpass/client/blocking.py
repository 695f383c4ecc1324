"""How `Client` performs the steps of a flow: with blocking I/O."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
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


class Blocking:
    """Everything that `Client` does on the network. Its methods only say which flow they are."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retries: Retries | None = None,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._protocol = Protocol(connection_for(url, api_key), timeout_s, retries or Retries())
        self._http = httpx.Client(transport=transport, mounts=dict(NO_PROXY), follow_redirects=False)
        self._sleep, self._clock = sleep, clock
        self._finalizer = weakref.finalize(self, self._http.close)

    @property
    def url(self) -> str:
        """The server's address."""
        return self._protocol.connection.url

    def close(self) -> None:
        """Give the connections back. Closing twice is harmless."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, call: Call[Reply]) -> Reply:
        return self._run(self._protocol.exchange(call))

    def _run(self, flow: Flow[Result]) -> Result:
        stream = _Stream(self._http)
        try:
            step = next(flow)
            while True:
                try:
                    result = self._perform(step, stream)
                except (httpx.TransportError, OSError) as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration as end:
            finished: Result = end.value
            return finished
        finally:
            stream.close()

    def _each(self, flow: ItemFlow[Item]) -> Iterator[Item]:
        stream = _Stream(self._http)
        try:
            step = next(flow)
            while True:
                if isinstance(step, Emit):
                    yield step.item
                    step = flow.send(None)
                    continue
                try:
                    result = self._perform(step, stream)
                except (httpx.TransportError, OSError) as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration:
            return
        finally:
            stream.close()
            flow.close()

    def _perform(self, step: Step, stream: _Stream) -> Answer | bytes | None:
        if isinstance(step, Pause):
            self._sleep(step.seconds)
            return None
        if isinstance(step, Open):
            return stream.open(step)
        if isinstance(step, Take):
            return stream.take()
        if isinstance(step, Store):
            return self._store(step)
        return answer_of(self._http.send(request_of(self._http, step)))

    def _store(self, step: Store) -> Answer:
        with self._http.stream("GET", step.url, timeout=httpx_timeout(step.timeout_s)) as response:
            if response.status_code != 200:
                response.read()
                return answer_of(response)
            try:
                step.sink.open()
                for chunk in response.iter_bytes():
                    step.sink.write(chunk)
                step.sink.commit()
            finally:
                step.sink.discard()
        return Answer(200, response.headers, b"")


class _Stream:
    """The answer that a flow reads while it is being written: at most one at a time."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._response: httpx.Response | None = None
        self._chunks: Iterator[bytes] = iter(())

    def open(self, step: Open) -> Answer:
        self.close()
        response = self._http.send(request_of(self._http, step), stream=True)
        if is_stream(response.status_code, response.headers):
            self._response, self._chunks = response, response.iter_bytes()
            return Answer(200, response.headers, b"")
        try:
            response.read()
        finally:
            response.close()
        return answer_of(response)

    def take(self) -> bytes:
        return next(self._chunks, b"")

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response, self._chunks = None, iter(())
