"""A database that breaks connections while they are being made is away, like one that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from app.db.engine import Database, make_engine
from app.errors import Unavailable


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers that it speaks no TLS, hears who wants to come in, and is gone."""
    await reader.readexactly(8)
    writer.write(b"N")
    await writer.drain()
    await reader.read(1)
    writer.close()


async def _shut_down(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As above, but says why: the server is shutting down (57P03)."""
    await reader.readexactly(8)
    writer.write(b"N")
    await writer.drain()
    await reader.read(1)
    fields = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is shutting down\0\0"
    writer.write(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)
    await writer.drain()
    writer.close()


@pytest.mark.parametrize("server_that", [_hang_up, _shut_down])
async def test_a_connection_that_breaks_while_it_is_made_says_that_the_database_is_away(server_that: Any) -> None:
    """Transactions, statements and the driver's own connection say the same."""
    server = await asyncio.start_server(server_that, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    database = Database(make_engine(f"postgresql://nobody:x@127.0.0.1:{port}/none", pool_size=2, timeout_s=10))
    async with server:
        with pytest.raises(Unavailable):
            async with database.transaction() as connection:
                await connection.execute(text("SELECT 1"))
        with pytest.raises(Unavailable):
            async with database.statement() as connection:
                await connection.execute(text("SELECT 1"))
        with pytest.raises(Unavailable):
            async with database.driver() as raw:
                await raw.fetchval("SELECT 1")
    await database.close()


@pytest.mark.parametrize(
    ("statement", "given"),
    [
        (
            "SELECT 1 WHERE 1 IN (" + ",".join(f":p{n}" for n in range(40_000)) + ")",
            {f"p{n}": n for n in range(40_000)},
        ),
        ("SELECT CAST(:number AS bigint)", {"number": 2**70}),
        ("SELECT CAST(:number AS bigint)", {"number": "three"}),
    ],
    ids=["more arguments than the protocol counts", "a number that no column holds", "a word for a number"],
)
async def test_a_statement_that_the_driver_refuses_is_not_taken_for_an_outage(
    database: Database, statement: str, given: dict[str, Any]
) -> None:
    """It would be tried again for ever, and end the round of whoever made it: it is the caller's own mistake."""
    with pytest.raises(DBAPIError):
        async with database.transaction() as connection:
            await connection.execute(text(statement), given)
    with pytest.raises(DBAPIError):
        async with database.statement() as connection:
            await connection.execute(text(statement), given)
    assert await database.answers()


async def test_a_database_that_is_gone_does_not_answer() -> None:
    """Asked whether it does, it is not waited for."""
    server = await asyncio.start_server(_hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        gone = Database(make_engine(f"postgresql://a:b@127.0.0.1:{port}/c", pool_size=1, timeout_s=5.0))
        assert not await gone.answers()
        await gone.close()


class GoodbyeServer:
    """In front of a database; says that it shuts down, and leaves connections open for as long as it likes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._clients: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", self._port)
        self._clients.append(writer)
        self._tasks += [asyncio.create_task(_pour(reader, ours)), asyncio.create_task(_pour(theirs, writer))]

    async def say_goodbye(self) -> None:
        """To all clients, who have heard it when this returns."""
        for writer in self._clients:
            fields = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
            writer.write(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)
            await writer.drain()
        for _ in range(50):
            await asyncio.sleep(0)

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._clients:
            writer.close()


async def _pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while content := await source.read(65_536):
            sink.write(content)
            await sink.drain()
    finally:
        sink.close()


@pytest.mark.parametrize("way", ["transaction", "statement", "driver"])
async def test_a_statement_after_the_servers_goodbye_says_that_the_database_is_away(
    database_url: str, way: str
) -> None:
    """The connection is still open, but the driver cannot use it any more: it is not taken for a fault of ours, and not
    used again."""
    url = make_url(database_url)
    between = GoodbyeServer(url.port or 5432)
    server = await asyncio.start_server(between.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    through = url.set(port=port).render_as_string(hide_password=False)
    database = Database(make_engine(through, pool_size=3, timeout_s=10))
    try:
        with pytest.raises(Unavailable):
            await _select(database, way, between.say_goodbye)
        await _select(database, way)
    finally:
        await database.close()
        server.close()
        await between.leave()


async def _select(database: Database, way: str, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
    if way == "driver":
        async with database.driver() as raw:
            await raw.fetchval("SELECT 1")
            if meanwhile is not None:
                await meanwhile()
            await raw.fetchval("SELECT 1")
        return
    async with getattr(database, way)() as connection:
        await connection.execute(text("SELECT 1"))
        if meanwhile is not None:
            await meanwhile()
        await connection.execute(text("SELECT 1"))
