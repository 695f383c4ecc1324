"""Both clients follow a job at the real server, through a line that breaks again and again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from allpass.client import AsyncClient, Client
from allpass.http import Retries
from app.core.model.job import JobState
from app.db.engine import Database, make_engine
from app.db.transitions import Event, add_job_event, move_job
from tests.api.served import build_world, serve, settings_for
from tests.seeds import T0_MS

PATIENCE_S = 60
_RETRIES = Retries(patience_s=20)
BATCHES, PER_BATCH = 4, 100
CUT_AFTER_BYTES = 24_000  # a page of events comes through


@asynccontextmanager
async def a_line_that_breaks(url: str, after_bytes: int) -> AsyncIterator[tuple[str, list[int]]]:
    """An address that forwards to `url`, and cuts each connection after so many bytes of answers; the cuts so far."""
    upstream, cuts = httpx.URL(url), list[int]()
    lines = set[asyncio.Task[None]]()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, out = await asyncio.open_connection(upstream.host, upstream.port)
        requests = asyncio.create_task(_copy(reader, out, 1 << 40))
        try:
            if await _copy(there, writer, after_bytes):
                cuts.append(after_bytes)
        finally:
            requests.cancel()
            for one in (writer, out):
                one.transport.abort()
            for one in (writer, out):
                with contextlib.suppress(OSError):
                    await one.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.add(asyncio.create_task(forward(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", cuts
    finally:
        server.close()
        for line in lines:
            line.cancel()
        await asyncio.gather(*lines, return_exceptions=True)  # or the loop would end before they are closed


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most_bytes: int) -> bool:
    """Forward until the end, or up to that many bytes: whether it was cut there."""
    with contextlib.suppress(OSError):
        while most_bytes > 0 and (chunk := await reader.read(min(most_bytes, 65536))):
            most_bytes -= len(chunk)
            writer.write(chunk)
            await writer.drain()
    return most_bytes <= 0


async def test_followers_at_the_real_server_miss_nothing(database_url: str, tmp_path: Path) -> None:
    """Events that are told while the line breaks arrive once and in order, at the sync and at the async client."""
    settings = settings_for(database_url, tmp_path)
    world = await asyncio.to_thread(build_world, settings)
    with serve(settings) as url:
        async with a_line_that_breaks(url, CUT_AFTER_BYTES) as (address, cuts), asyncio.timeout(PATIENCE_S):
            followers = [
                asyncio.create_task(asyncio.to_thread(_follow, address, world.api_key, world.steered)),
                asyncio.create_task(_follow_awaited(address, world.api_key, world.steered)),
            ]
            await _tell(settings.database_url.get_secret_value(), world.steered)
            told = await asyncio.gather(*followers)
        with Client(url, world.api_key) as client:
            recorded = [(one.position, one.message) for one in client.events(world.steered)]
    assert [position for position, _ in recorded] == list(range(1, BATCHES * PER_BATCH + 2))
    assert told == [recorded, recorded]
    assert len(cuts) >= 2


def _follow(url: str, key: str, job_id: str) -> list[tuple[int, str]]:
    with Client(url, key, retries=_RETRIES) as client:
        return [(one.position, one.message) for one in client.events(job_id, follow=True)]


async def _follow_awaited(url: str, key: str, job_id: str) -> list[tuple[int, str]]:
    async with AsyncClient(url, key, retries=_RETRIES) as client:
        return [(one.position, one.message) async for one in client.events(job_id, follow=True)]


async def _tell(database_url: str, job_id: str) -> None:
    database = Database(make_engine(database_url, pool_size=2, timeout_s=30.0))
    try:
        for batch in range(BATCHES):
            async with database.transaction() as connection:
                for number in range(PER_BATCH):
                    event = Event("note", f"{batch}.{number}", {})
                    await add_job_event(connection, job_id, event, now_ms=T0_MS)
        async with database.transaction() as connection:
            ended = Event("cancelled", "over")
            assert await move_job(connection, job_id, JobState.CANCELLED, ended, now_ms=T0_MS)
    finally:
        await database.close()
