"""Answers on the wire: head and body in one write, nothing lost, nothing reordered."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st

from app.api.serving import OneWrite, serving_options

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

    async with _served(application) as port, asyncio.timeout(20):
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
