"""Following events: from the stream, across whatever happens to it, and without one."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpass import errors
from allpass.client import AsyncClient, Client
from allpass.sse import LONGEST_EVENT_BYTES, EventReader
from tests.sdk.conftest import Waits
from tests.sdk.fake_service import KEY, FakeService, problem

RETRY = b"retry: 1000\n\n"
ALIVE = b": still there\n\n"
CUT = httpx.ReadError("connection reset")
LATE = httpx.ReadTimeout("nothing was heard")
WHOLE = b'retry: 1000\n\nid: 1\ndata: {"a": "\xc3\xa9"}\n\n: still there\n\nid: 2\nevent: end\ndata: x\ndata: y\n\n'


class Script(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Bytes of an answer in these pieces; an exception breaks it there. `closed` once the client is done with it."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self._pieces = pieces
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


class Streams:
    """The service's stream route: each request is answered with the next script, and noted."""

    def __init__(self, service: FakeService) -> None:
        self._service = service
        self.job = service.add_job(status="running")
        self.positions: list[int] = []
        self.scripts: list[Script | httpx.Response] = []
        self.given: list[Script] = []
        for number in range(1, 7):
            service.add_event(self.job["id"], f"e{number}")
        service.on_stream = self._answer
        service.page_size = 100

    def event(self, position: int) -> bytes:
        data = json.dumps(self._service.events[self.job["id"]][position - 1])
        return f"id: {position}\ndata: {data}\n\n".encode()

    def events(self, *positions: int) -> bytes:
        return b"".join(self.event(one) for one in positions)

    def end(self, position: int = 6) -> bytes:
        return b'id: %d\nevent: end\ndata: {"status":"succeeded"}\n\n' % position

    def _answer(self, job_id: str, position: int) -> httpx.Response:
        assert job_id == self.job["id"]
        self.positions.append(position)
        script = self.scripts.pop(0)
        if isinstance(script, httpx.Response):
            return script
        self.given.append(script)
        return httpx.Response(200, headers={"content-type": "text/event-stream; charset=utf-8"}, stream=script)

    def pages(self) -> int:
        return sum(one.url.path.endswith("/events") for one in self._service.requests)


@pytest.fixture
def streams(service: FakeService) -> Streams:
    return Streams(service)


def positions_told(client: Client, streams: Streams, **options: Any) -> list[int]:
    return [one.position for one in client.events(streams.job["id"], follow=True, **options)]


def test_one_stream_tells_everything(client: Client, streams: Streams) -> None:
    """One request gives the events up to the job's end, with the position to begin after, and is closed."""
    streams.scripts = [Script(RETRY, streams.events(3, 4), ALIVE, streams.events(5, 6) + streams.end(), b"more")]
    assert positions_told(client, streams, after=2) == [3, 4, 5, 6]
    assert (streams.positions, streams.pages(), streams.given[0].closed) == ([2], 0, True)


@pytest.mark.parametrize(
    "broken", [[CUT], [LATE], [httpx.RemoteProtocolError("incomplete")], [], [b'id: 4\ndata: {"pos', CUT]]
)
def test_a_broken_stream_goes_on_where_it_was(
    client: Client, streams: Streams, broken: list[bytes | Exception]
) -> None:
    """Cut, silent, ended early or in the middle of an event: each event comes once, from where it was."""
    streams.scripts = [Script(RETRY, streams.events(1, 2, 3), *broken), Script(RETRY, streams.end())]
    assert positions_told(client, streams) == [1, 2, 3, 4, 5, 6]
    assert streams.positions == [0, 6]
    assert all(one.closed for one in streams.given)


def test_an_event_that_is_missing_is_fetched(client: Client, streams: Streams) -> None:
    """A gap in a stream, or an end that comes too early, is filled from the pages; repeated events are dropped."""
    streams.scripts = [Script(streams.events(1, 1, 4, 5)), Script(streams.events(5, 6) + streams.end())]
    assert positions_told(client, streams) == [1, 2, 3, 4, 5, 6]
    streams.scripts = [Script(streams.events(1, 2) + streams.end(6)), Script(streams.end(6))]
    assert positions_told(client, streams) == [1, 2, 3, 4, 5, 6]


def test_a_server_that_is_away_for_a_while_is_waited_for(
    service: FakeService, client: Client, streams: Streams, waits: Waits
) -> None:
    """A refused connection is no end: the page and the stream are asked for again, and the streams stay."""
    streams.scripts = [Script(streams.events(1), CUT), Script(streams.end())]
    service.faults = [None, *[httpx.ConnectError("refused")] * 12]
    assert positions_told(client, streams) == [1, 2, 3, 4, 5, 6]
    assert 0 < waits.now < 300
    service.faults = [httpx.ConnectError("refused")] * 100_000
    with pytest.raises(errors.ConnectionFailed):
        positions_told(client, streams)


@pytest.mark.parametrize(
    "answer",
    [
        problem(404, "not_found", "there is no such route"), problem(405, "method_not_allowed", "no"),
        httpx.Response(200, json={"data": [], "next_cursor": None}), httpx.Response(404, text="<html>"),
    ],
)  # fmt: skip
def test_an_older_server_is_asked_instead(
    service: FakeService, client: Client, streams: Streams, answer: httpx.Response, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a stream the same events come from long polls, up to the job's last one, and the log says so."""
    streams.scripts = [answer]
    streams.job["status"] = "succeeded"
    with caplog.at_level("INFO", logger="allpass"):
        assert positions_told(client, streams) == [1, 2, 3, 4, 5, 6]
    assert len(streams.positions) == 1
    assert [record.getMessage() for record in caplog.records if record.name == "allpass"] == [
        f"{service.base}: the events of {streams.job['id']} cannot be streamed: asking for them"
    ]


def test_a_proxy_that_lets_no_stream_through_is_given_up_on(client: Client, streams: Streams, waits: Waits) -> None:
    """Streams that end without a single byte, or are refused for now, are tried three times, then never again."""
    streams.scripts = [Script(LATE), httpx.Response(502, text="<html>"), problem(503, "unavailable", "too many")]
    streams.job["status"] = "succeeded"
    assert positions_told(client, streams) == [1, 2, 3, 4, 5, 6]
    assert len(streams.positions) == 3
    assert waits.now >= 2.0


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (401, "unauthenticated", errors.AuthenticationError), (403, "forbidden", errors.PermissionDenied),
        (422, "invalid_input", errors.InvalidRequest),
    ],
)  # fmt: skip
def test_a_stream_that_is_refused_for_good_is_an_error(
    client: Client, streams: Streams, status: int, code: str, kind: type[errors.ApiError]
) -> None:
    """A key that was revoked meanwhile ends the following, with the service's error."""
    streams.scripts = [Script(streams.events(1), CUT), problem(status, code, "no")]
    told = client.events(streams.job["id"], follow=True)
    with pytest.raises(kind) as failed:
        list(told)
    assert failed.value.request_id == "req_1"


def test_a_job_that_is_not_there_cannot_be_followed(service: FakeService, client: Client) -> None:
    """It is NotFound, whether or not the server has streams."""
    with pytest.raises(errors.NotFound):
        list(client.events("job_none", follow=True))


def test_events_that_are_none_are_told(client: Client, streams: Streams) -> None:
    """A stream of something else is UnexpectedReply, not a validation error."""
    streams.scripts = [Script(b"id: 1\ndata: [1]\n\n")]
    with pytest.raises(errors.UnexpectedReply, match=r"not understood: '\[1\]'"):
        positions_told(client, streams)


def test_who_stops_listening_lets_go_of_the_connection(client: Client, streams: Streams) -> None:
    """A loop that is left closes the stream under it."""
    streams.scripts = [Script(RETRY, streams.events(1, 2))]
    told = client.events(streams.job["id"], follow=True)
    assert next(told).position == 1
    told.close()  # type: ignore[attr-defined]  # a generator
    assert streams.given[0].closed


async def test_the_async_client_follows_in_the_same_way(service: FakeService, streams: Streams) -> None:
    """Broken streams resume, leaving closes, and an older server is asked instead."""
    streams.scripts = [Script(RETRY, streams.events(1, 2), CUT), Script(RETRY, streams.end())]
    transport = httpx.MockTransport(service)
    times = iter(range(0, 1000, 10))
    async with AsyncClient(service.base, KEY, transport=transport, clock=lambda: float(next(times))) as client:
        told = [one.position async for one in client.events(streams.job["id"], follow=True)]
        assert (told, streams.positions) == ([1, 2, 3, 4, 5, 6], [0, 6])
        assert all(one.closed for one in streams.given)
        streams.scripts = [Script(RETRY, streams.events(1, 2))]
        following = client.events(streams.job["id"], follow=True)
        assert (await anext(following)).position == 1
        await following.aclose()  # type: ignore[attr-defined]  # a generator
        assert streams.given[-1].closed
        streams.scripts = [problem(404, "not_found", "no such route")]
        streams.job["status"] = "failed"
        assert [one.position async for one in client.events(streams.job["id"], follow=True)] == [1, 2, 3, 4, 5, 6]
    await asyncio.sleep(0)


@given(st.lists(st.integers(0, len(WHOLE) * 2), max_size=12), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_events_do_not_depend_on_how_the_bytes_were_cut(cuts: list[int], newline: bytes) -> None:
    """Any pieces and any line ends give the same events, also in the middle of a character."""
    whole = b"\xef\xbb\xbf" + WHOLE.replace(b"\n", newline) + b":\n"
    edges = [0, *sorted(min(one, len(whole)) for one in cuts), len(whole)]
    reader = EventReader()
    told = [one for start, end in itertools.pairwise(edges) for one in reader.feed(whole[start:end])]
    assert [(one.kind, one.data, one.number) for one in told] == [("message", '{"a": "é"}', 1), ("end", "x\ny", 2)]


def test_an_event_without_end_is_not_collected_for_ever() -> None:
    """A stream that never ends its event is refused before it fills the memory."""
    reader = EventReader()
    with pytest.raises(errors.UnexpectedReply, match="more than"):
        for _ in range(LONGEST_EVENT_BYTES // 1_000_000 + 2):
            reader.feed(b"data: " + b"x" * 1_000_000 + b"\n")
