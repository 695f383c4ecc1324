"""How `Client` performs the steps of a flow: with blocking I/O."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

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
    Result,
    Retries,
    Send,
    Step,
    Store,
    Take,
    httpx_timeout,
    is_stream,
)
from allpass.http import (
    Protocol as Calls,
)

if TYPE_CHECKING:
    from typing_extensions import Self

_TOLD_BYTES = 1 << 20
_SLICE_BYTES = 1 << 18


class Transfer(Protocol):
    """Is told how far large transfers are: see `Client.transfer`."""

    def begin(self, total_bytes: int) -> None: ...

    def moved(self, count_bytes: int) -> None:
        """So many more; fewer than none when an attempt failed and its bytes come again."""


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
        self._protocol = Calls(connection_for(url, api_key), timeout_s, retries or Retries())
        self._http = httpx.Client(transport=transport, mounts=dict(NO_PROXY), follow_redirects=False)
        self._sleep, self._clock = sleep, clock
        self.transfer: Transfer | None = None
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
        return self._send(step)

    def _send(self, step: Send) -> Answer:
        content = step.content or b""
        if self.transfer is None or len(content) < _TOLD_BYTES:
            return answer_of(self._http.send(request_of(self._http, step)))
        self.transfer.begin(len(content))
        headers = {**step.headers, "Content-Length": str(len(content))}
        request = self._http.build_request(
            step.method,
            step.url,
            headers=headers,
            content=_slices(content, self.transfer),
            timeout=httpx_timeout(step.timeout_s),
        )
        return answer_of(self._http.send(request))

    def _store(self, step: Store) -> Answer:
        with self._http.stream("GET", step.url, timeout=httpx_timeout(step.timeout_s)) as response:
            if response.status_code != 200:
                response.read()
                return answer_of(response)
            moved, tell = 0, self.transfer.moved if self.transfer is not None else _nobody
            try:
                step.sink.open()
                for chunk in response.iter_bytes():
                    step.sink.write(chunk)
                    moved += len(chunk)
                    tell(len(chunk))
                step.sink.commit()
            except BaseException:
                tell(-moved)
                raise
            finally:
                step.sink.discard()
        return Answer(200, response.headers, b"")


def _slices(content: bytes, transfer: Transfer) -> Iterator[bytes]:
    for start in range(0, len(content), _SLICE_BYTES):
        part = content[start : start + _SLICE_BYTES]
        yield part
        transfer.moved(len(part))


def _nobody(count_bytes: int) -> None:
    """Nobody wants to know."""


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
