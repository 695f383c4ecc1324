"""Answers on the wire: head and body in one write, nothing lost, nothing reordered."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st

from allpass.wire.base import ErrorBody
from app.api import serving
from app.api.serving import MAX_HEADERS_BYTES, MAX_URL_BYTES, OneWrite, serving_options

_REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Wire(asyncio.Transport):
    """Remembers what was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


async def test_a_head_and_its_body_are_one_write() -> None:
    """Two writes in a row reach the wire as one, at once."""
    wire = Wire()
    transport = OneWrite(wire, asyncio.get_running_loop())
    transport.write(b"head")
    assert wire.writes == []
    transport.write(b"body")
    assert wire.writes == [b"headbody"]


async def test_what_nothing_follows_is_sent_when_the_loop_turns() -> None:
    """The head of a stream does not wait for its first chunk."""
    wire = Wire()
    OneWrite(wire, asyncio.get_running_loop()).write(b"head")
    await asyncio.sleep(0)
    assert wire.writes == [b"head"]


async def test_a_peer_that_went_gets_nothing_more() -> None:
    """Held data is dropped when the connection closed underneath."""
    wire = Wire()
    OneWrite(wire, asyncio.get_running_loop()).write(b"head")
    wire.close()
    await asyncio.sleep(0)
    assert wire.writes == []


@given(st.lists(st.one_of(st.binary(max_size=4), st.none()), max_size=30))
@settings(max_examples=100)
def test_every_byte_arrives_once_and_in_order(steps: list[bytes | None]) -> None:
    """Whatever is written, with turns of the loop (None) anywhere between, and a close behind it."""

    async def story() -> None:
        wire = Wire()
        transport = OneWrite(wire, asyncio.get_running_loop())
        for step in steps:
            if step is None:
                await asyncio.sleep(0)
            else:
                transport.write(step)
        transport.close()
        await asyncio.sleep(0)
        assert b"".join(wire.writes) == b"".join(step for step in steps if step is not None)
        assert wire.closed

    asyncio.run(story())


async def test_a_real_server_answers_in_one_piece_and_streams_in_several() -> None:
    """Over a real socket: a keep-alive connection gets whole answers, and a stream's head comes before its end."""
    goes_on = asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        length = b"4" if scope["path"] == "/" else b"8"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": b"body", "more_body": scope["path"] != "/"})
        if scope["path"] != "/":
            await goes_on.wait()
            await send({"type": "http.response.body", "body": b"tail"})

    async with _served(application) as port, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(_REQUEST)
            answer = await reader.readuntil(b"body")
            assert answer == b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbody"
        writer.write(_REQUEST.replace(b"/ ", b"/stream "))
        assert (await reader.readuntil(b"body")).startswith(b"HTTP/1.1 200 OK")
        goes_on.set()
        assert await reader.readexactly(4) == b"tail"
        writer.close()
        await writer.wait_closed()


_TOO_MANY = b"".join(b"X-%d: %b\r\n" % (number, b"v" * 1000) for number in range(80))


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"GET /v1/jobs?label=%b HTTP/1.1\r\nHost: x\r\n\r\n" % (b"a" * 20_000), 414, "url_too_long"),
        (b"GET /v1/jobs?label=%b HTTP/1.1\r\nHost: x\r\n\r\n" % (b"a" * 2_000_000), 414, "url_too_long"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n%b\r\n" % _TOO_MANY, 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: %b\r\n\r\n" % (b"v" * 70_000), 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: %b" % (b"v" * 2_000_000), 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\n" + b"%b: x" % (b"n" * 2_000_000), 431, "headers_too_large"),
        (b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_request"),
        (b"get / HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_request"),
        (b"GET / HTTP/9.9\r\nHost: x\r\n\r\n", 400, "invalid_request"),
        (b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_request"),
        (b"GET http:// HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_request"),
        (b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_request"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400, "invalid_request"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1x\r\n\r\n", 400, "invalid_request"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", 400, "invalid_request"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400, "invalid_request"),
        (
            b"POST / HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            "invalid_request",
        ),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "invalid_request"),
        (b"hello\r\n\r\n", 400, "invalid_request"),
    ],
    ids=lambda value: value[:40] if isinstance(value, bytes) else None,
)
async def test_what_cannot_be_served_is_answered_in_our_form(head: bytes, status: int, code: str) -> None:
    """Over a real socket: the status, a body with a code, and the end of the connection; the next one is served."""
    async with _served(_answers) as port, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        answer = await reader.read()
        first, _, body = answer.partition(b"\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 %d " % status), answer
        assert b"content-type: application/json" in first
        assert b"x-request-id: none" in first
        assert b"content-length: %d" % len(body) in first
        error = ErrorBody.model_validate_json(body).error
        assert (error.code, error.retryable) == (code, False)
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_REQUEST)
        assert (await reader.readuntil(b"body")).startswith(b"HTTP/1.1 200 OK")
        writer.close()


async def test_what_is_just_within_the_limits_is_served() -> None:
    """The longest URL, and headers that come slowly, one connection for many of them: the limit is a request's own."""
    async with _served(_answers) as port, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(30):
            writer.write(b"GET /?%b HTTP/1.1\r\nHost: x\r\n" % (b"a" * (MAX_URL_BYTES - 2)))
            await writer.drain()
            writer.write(b"X: %b\r\n\r\n" % (b"v" * (MAX_HEADERS_BYTES - 100)))
            assert (await reader.readuntil(b"body")).startswith(b"HTTP/1.1 200 OK")
        writer.close()


async def test_a_peer_that_never_ends_its_request_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, and what it goes on sending is dropped until its connection is closed."""
    monkeypatch.setattr(serving, "_LINGER_S", 0.05)
    async with _served(_answers) as port, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"GET" + b" " * 100_000)
                await writer.drain()
        with contextlib.suppress(ConnectionError):
            assert b"invalid_request" in await reader.read()
        writer.close()


async def _answers(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"body"})


@contextlib.asynccontextmanager
async def _served(application: Any) -> AsyncIterator[int]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(application, lifespan="off", **serving_options()))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started:
            await asyncio.sleep(0.01)
        yield listening.getsockname()[1]
        server.should_exit = True
        await serving
