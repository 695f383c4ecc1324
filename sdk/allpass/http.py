"""How requests leave and answers are understood: shared by the sync and the async client.

The protocol is written as generators ("flows") that never touch a socket: they yield steps (send this, wait that long,
store this file) and are sent the results. `allpass.client` performs the steps with blocking I/O or with asyncio, and
that is all in which the two clients differ.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from allpass import __version__
from allpass.calls import Call
from allpass.config import Connection
from allpass.download import Sink
from allpass.errors import AllpassError, ConnectionFailed, ServerError, UnexpectedReply, api_error_class
from allpass.wire.base import ErrorBody

Result = TypeVar("Result")
Item = TypeVar("Item")
Reply = TypeVar("Reply", bound=BaseModel)
RETRIED_STATUSES = frozenset({429, 502, 503, 504})
CONNECT_TIMEOUT_S = 10.0
LONG_POLL_MARGIN_S = 10.0


@dataclass(frozen=True)
class Send:
    """Send a request. The result is an `Answer`; httpx.TransportError is thrown into the flow."""

    method: str
    url: str
    headers: Mapping[str, str]
    content: bytes | None
    timeout_s: float


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True)
class Store:
    """GET `url` into `sink`. The result is an `Answer` without content; nothing is written unless it is a 200."""

    url: str
    sink: Sink
    timeout_s: float


@dataclass(frozen=True)
class Open:
    """GET `url` as a stream of events. The result is an `Answer`; without content if it is one (`is_stream`), and then
    `Take` reads it. Opening another one, or the flow's end, closes it."""

    url: str
    headers: Mapping[str, str]
    timeout_s: float


@dataclass(frozen=True)
class Take:
    """The next bytes of the stream that is open, as they come; none at its end."""


@dataclass(frozen=True)
class Pause:
    """Wait. The result is None."""

    seconds: float


@dataclass(frozen=True)
class Emit(Generic[Item]):
    """Hand `item` to the caller's loop."""

    item: Item


Step = Send | Store | Open | Take | Pause
Flow = Generator[Step, Any, Result]
ItemFlow = Generator["Step | Emit[Item]", Any, None]


@dataclass(frozen=True)
class Retries:
    """How often and how long: exponential back-off with full jitter, never longer than `longest_wait_s`.

    `attempts` counts the first try. Only requests that cannot have a second effect are repeated: reads, and writes
    under the same idempotency key. `patience_s` is how long `wait()` and followed logs live through an outage.
    """

    attempts: int = 5
    first_wait_s: float = 0.25
    longest_wait_s: float = 8.0
    patience_s: float = 300.0
    chance: Callable[[], float] = field(default=random.random, repr=False)

    def wait_s(self, attempt: int, retry_after_s: float | None = None) -> float:
        """The wait before attempt number `attempt` (2, 3, ...). What the server asks for is the least."""
        ceiling = min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(attempt - 2, 30))
        return min(self.longest_wait_s, max(ceiling * self.chance(), retry_after_s or 0.0))


@dataclass(frozen=True)
class Protocol:
    """Turns calls into steps: addresses, credentials, timeouts, retries and errors."""

    connection: Connection
    timeout_s: float = 30.0
    retries: Retries = field(default_factory=Retries)

    def exchange(self, call: Call[Reply]) -> Flow[Reply]:
        """Send `call`, retrying what may be retried; the parsed answer, or one of our errors."""
        send = self._send(call)
        answer = yield from self.attempts(send, f"{self.connection.url} ({self.connection.origin})", call.answers)
        if answer.status >= 400 and answer.status not in call.answers:
            raise error_of(answer)
        return _parse(call, answer)

    def attempts(self, step: Send | Store, whom: str, answers: frozenset[int] = frozenset()) -> Flow[Answer]:
        """Perform `step` until it is answered with a status that is not retried, or the attempts are used up."""
        attempt = 1
        while True:
            failure: httpx.TransportError | None = None
            try:
                answer: Answer = yield step
                if answer.status not in RETRIED_STATUSES - answers or attempt >= self.retries.attempts:
                    return answer
                retry_after_s = _retry_after_s(answer)
            except httpx.TransportError as error:
                failure, retry_after_s = error, None
            if failure is not None and attempt >= self.retries.attempts:
                raise ConnectionFailed(
                    f"no answer from {whom}: {_cause(failure)} (tried {attempt} times)",
                    hint="is the server running? allpass up starts one on this machine",
                ) from failure
            attempt += 1
            yield Pause(self.retries.wait_s(attempt, retry_after_s))

    def patiently(self, call: Call[Reply], clock: Callable[[], float]) -> Flow[Reply]:
        """Like `exchange`, but an outage shorter than `patience_s` is waited out: for reads that go on for hours."""
        give_up_at: float | None = None
        failures = 0
        while True:
            try:
                return (yield from self.exchange(call))
            except (ConnectionFailed, ServerError) as error:
                now = clock()
                give_up_at = now + self.retries.patience_s if give_up_at is None else give_up_at
                temporary = isinstance(error, ConnectionFailed) or error.http_status in RETRIED_STATUSES
                if not temporary or now >= give_up_at:
                    raise
                failures += 1
                yield Pause(min(self.retries.longest_wait_s, 0.5 * 2.0 ** min(failures, 10)))

    def stream(self, path: str, last_event_id: str, *, silence_s: float) -> Open:
        """Server-sent events from after `last_event_id`. `silence_s`: the longest time without a sign of life."""
        headers = self._headers("text/event-stream") | {"Last-Event-ID": last_event_id, "Cache-Control": "no-store"}
        return Open(self.connection.url + path, headers, max(self.timeout_s, silence_s))

    def _headers(self, accept: str) -> dict[str, str]:
        return {
            "Accept": accept,
            "Authorization": f"Bearer {self.connection.api_key}",
            "User-Agent": f"allpass-python/{__version__}",
        }

    def _send(self, call: Call[Reply]) -> Send:
        headers = self._headers("application/json")
        content = None
        if call.body is not None:
            headers["Content-Type"] = "application/json"
            content = _encode(call.body)
        if call.key is not None:
            headers["Idempotency-Key"] = call.key
        url = str(httpx.URL(self.connection.url + call.path, params=dict(call.query)))
        wait_s = call.wait_s + LONG_POLL_MARGIN_S if call.wait_s else 0.0
        return Send(call.method, url, headers, content, max(self.timeout_s, wait_s))


def httpx_timeout(timeout_s: float) -> httpx.Timeout:
    """`timeout_s` bounds each wait for bytes; connecting is bounded more tightly."""
    return httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S))


def is_stream(status: int, headers: Mapping[str, str]) -> bool:
    """Whether an answer is a stream of server-sent events."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return status == 200 and kind == "text/event-stream"


def error_of(answer: Answer) -> AllpassError:
    """Our error for an answer with status 400 or above."""
    request_id = answer.headers.get("x-request-id")
    try:
        detail = ErrorBody.model_validate_json(answer.content).error
    except ValidationError:
        kind = answer.headers.get("content-type", "no content type")
        if answer.status in RETRIED_STATUSES:  # a proxy that cannot reach the service
            return ServerError(
                f"HTTP {answer.status} from something before the service ({kind})",
                code="bad_gateway",
                http_status=answer.status,
                request_id=request_id,
                retryable=True,
            )
        return UnexpectedReply(
            f"HTTP {answer.status} with a body that is not Allpass's ({kind}): is the address right?",
            hint="check ALLPASS_URL",
        )
    return api_error_class(answer.status)(
        detail.message,
        code=detail.code,
        param=detail.param,
        http_status=answer.status,
        request_id=detail.request_id or request_id,
        retryable=detail.retryable,
    )


def _encode(body: BaseModel) -> bytes:
    """Only what was set is sent: an older server then knows every field."""
    return json.dumps(body.model_dump(mode="json", exclude_unset=True), allow_nan=False).encode()


def _parse(call: Call[Reply], answer: Answer) -> Reply:
    try:
        return call.reply.model_validate_json(answer.content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnexpectedReply(
            f"{call.method} {call.path}: the answer (HTTP {answer.status}) is not understood: "
            f"{where + ': ' if where else ''}{first['msg']}",
            hint="check ALLPASS_URL, and that client and server are of about the same version",
        ) from error


def _retry_after_s(answer: Answer) -> float | None:
    """Seconds only; a date would need the server's clock."""
    try:
        seconds = float(answer.headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _cause(error: httpx.TransportError) -> str:
    words = str(error) or "the connection broke"
    return f"{words} [{type(error).__name__}]"
