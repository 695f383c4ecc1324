"""Events of a job, as pages and as they happen.

Following uses the server's stream. Whatever breaks it, the next step is one ordinary page from the last position on,
so nothing is skipped and nothing comes twice; then the stream is opened again, from there. A server that has no such
stream, or a proxy that lets none through, is followed by long polls.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Generator
from typing import Any, TypeVar

import httpx
from pydantic import ValidationError

from allpass import calls
from allpass.errors import UnexpectedReply
from allpass.flows import LONG_POLL_S, Clock, at_least, read_page
from allpass.http import Answer, Emit, ItemFlow, Protocol, Step, Take, error_of, is_stream
from allpass.sse import EventReader, ServerSentEvent
from allpass.wire.jobs import TERMINAL_STATUSES, JobEvent

log = logging.getLogger("allpass")
Result = TypeVar("Result")
EventFlow = Generator[Step | Emit[JobEvent], Any, Result]

SILENCE_S = 45.0  # a server says every 15 s that it is there
END = "end"
FRUITLESS_STREAMS = 3
_NO_SUCH_ROUTE = frozenset({404, 405, 406, 501})
_FOR_NOW = frozenset({429, 500, 502, 503, 504})


class _Outcome(enum.Enum):
    ENDED = "the job is over, and its last event is out"
    BROKEN = "the stream ended before"
    ABSENT = "there is no stream"


class _Position:
    """Where a follower is, and whether the last stream told it anything."""

    def __init__(self, after: int) -> None:
        self.last = after
        self.heard = False


def events(protocol: Protocol, job_id: str, after: int, follow: bool, clock: Clock) -> ItemFlow[JobEvent]:
    """Events after position `after`, each once, in order. Following ends after the job's last event."""
    if not follow:
        yield from _polled(protocol, job_id, _Position(after), False, clock)
        return
    position, fruitless = _Position(after), 0
    while True:
        opened = clock()
        outcome = yield from _streamed(protocol, job_id, position)
        if outcome is _Outcome.ENDED:
            return
        fruitless = 0 if position.heard else fruitless + 1
        if outcome is _Outcome.ABSENT or fruitless >= FRUITLESS_STREAMS:
            log.info("%s: the events of %s cannot be streamed: asking for them", protocol.connection.url, job_id)
            yield from _polled(protocol, job_id, position, True, clock)
            return
        yield from _page(protocol, job_id, position, clock)
        yield from at_least(1.0, opened, clock)


def _streamed(protocol: Protocol, job_id: str, position: _Position) -> EventFlow[_Outcome]:
    """What one stream tells. Raises the service's error if it will never tell anything."""
    position.heard = False
    step = protocol.stream(calls.events_stream_path(job_id), str(position.last), silence_s=SILENCE_S)
    reader = EventReader()
    try:
        answer: Answer = yield step
        if not is_stream(answer.status, answer.headers):
            return _refused(answer)
        while chunk := (yield Take()):
            position.heard = True
            for told in reader.feed(chunk):
                if told.kind == END:
                    return _Outcome.ENDED if told.number <= position.last else _Outcome.BROKEN
                event = _event(told)
                if event.position > position.last + 1:
                    return _Outcome.BROKEN  # something is missing: the page that is read next has it
                if event.position == position.last + 1:
                    position.last = event.position
                    yield Emit(event)
    except httpx.TransportError:
        pass
    return _Outcome.BROKEN


def _refused(answer: Answer) -> _Outcome:
    if answer.status in _FOR_NOW:
        return _Outcome.BROKEN
    if answer.status in _NO_SUCH_ROUTE or answer.status < 400:
        return _Outcome.ABSENT  # if it is the job that is missing, the first page says so
    raise error_of(answer)


def _event(told: ServerSentEvent) -> JobEvent:
    try:
        return JobEvent.model_validate_json(told.data)
    except ValidationError as error:
        raise UnexpectedReply(
            f"the stream of events holds one that is not understood: {told.data[:200]!r}",
            hint="check that client and server are of about the same version",
        ) from error


def _page(protocol: Protocol, job_id: str, position: _Position, clock: Clock) -> EventFlow[None]:
    """What is there already. An outage is waited out."""
    page = yield from protocol.patiently(calls.get_events(job_id, after=position.last), clock)
    for event in page.data:
        position.last = max(position.last, event.position)
        yield Emit(event)


def _polled(protocol: Protocol, job_id: str, position: _Position, follow: bool, clock: Clock) -> ItemFlow[JobEvent]:
    """Page after page. Following asks for what is to come, in requests that the server holds open."""
    ended = False
    while True:
        started = clock()
        call = calls.get_events(job_id, after=position.last, wait_s=LONG_POLL_S if follow and not ended else 0)
        page = yield from read_page(protocol, call, follow, clock)
        for event in page.data:
            position.last = max(position.last, event.position)
            yield Emit(event)
        if page.data:
            continue
        if not follow or ended:
            return
        job = yield from protocol.patiently(calls.get_job(job_id), clock)
        ended = job.status in TERMINAL_STATUSES
        if not ended:
            yield from at_least(1.0, started, clock)
