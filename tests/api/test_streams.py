"""Server-sent events over the real application: the wire format, resuming, and clients that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI

from allpass.wire.jobs import JobEvent
from app.api import streams
from app.api.context import ApiContext
from app.core.model.job import JobState
from app.db.transitions import Event, add_job_event, move_job
from tests.api.builders import add_job
from tests.api.conftest import Tenant, error_of
from tests.seeds import T0_MS, new_id

PATIENCE_S = 60


class Client:
    """An ASGI client that reads an answer while it is being written."""

    def __init__(self, api: FastAPI, tenant: Tenant, path: str, headers: dict[str, str]) -> None:
        raw = {"authorization": f"Bearer {tenant.key}", **headers}
        path, _, query = path.partition("?")
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in raw.items()],
            "client": ("127.0.0.1", 1),
            "server": ("allpass", 80),
        }
        self.gone = asyncio.Event()
        self._asked = False
        self._news = asyncio.Event()
        self.head: dict[str, Any] = {}
        self.text = ""
        self.complete = False
        self.task = asyncio.create_task(api(self._scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.head = {"status": message["status"], **{k.decode(): v.decode() for k, v in message["headers"]}}
        else:
            self.text += message["body"].decode()
            self.complete = not message.get("more_body", False)
        self._news.set()

    async def until(self, part: str) -> None:
        """Wait until `part` has been received."""
        async with asyncio.timeout(PATIENCE_S):
            while part not in self.text:
                self._news.clear()
                await self._news.wait()

    def records(self) -> list[dict[str, str]]:
        """The events so far, as fields; comments and bare settings are left out."""
        blocks = [dict(line.split(": ", 1) for line in block.split("\n")) for block in self.text.split("\n\n") if block]
        return [block for block in blocks if "data" in block]


@asynccontextmanager
async def open_stream(
    api: FastAPI, tenant: Tenant, job_id: str, query: str = "", **headers: str
) -> AsyncIterator[Client]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    client = Client(api, tenant, f"/v1/jobs/{job_id}/events/stream{query}", names)
    try:
        yield client
    finally:
        client.gone.set()
        async with asyncio.timeout(PATIENCE_S):
            await client.task


async def add_events(context: ApiContext, job_id: str, count: int) -> None:
    async with context.database.transaction() as connection:
        for number in range(count):
            await add_job_event(connection, job_id, Event("note", f"n{number}\nnext", {"n": number}), now_ms=T0_MS)


async def cancel(context: ApiContext, job_id: str) -> None:
    async with context.database.transaction() as connection:
        assert await move_job(connection, job_id, JobState.CANCELLED, Event("cancelled", "over"), now_ms=T0_MS)


@pytest.mark.usefixtures("listening")
async def test_a_stream_tells_what_was_and_what_comes_and_ends(
    api: FastAPI, tenant: Tenant, context: ApiContext
) -> None:
    """Events with their position as id, each one line; after the last, `end` with the job's status."""
    job_id = await add_job(context, tenant)
    await add_events(context, job_id, 2)
    async with open_stream(api, tenant, job_id) as client:
        await client.until("id: 2\n")
        await add_events(context, job_id, 1)
        await client.until("id: 3\n")
        assert not client.complete
        await cancel(context, job_id)
        await client.until("event: end")
        await client.task
    assert client.head["status"] == 200
    assert client.head["content-type"] == "text/event-stream; charset=utf-8"
    assert client.head["cache-control"] == "no-store"
    assert "content-length" not in client.head
    assert client.complete
    *events, end = client.records()
    told = [JobEvent.model_validate_json(one["data"]) for one in events]
    assert [(one["id"], event.position) for one, event in zip(events, told, strict=True)] == [
        (str(n), n) for n in (1, 2, 3, 4)
    ]
    assert told[0].message == "n0\nnext"
    assert (end["event"], end["id"], json.loads(end["data"])) == ("end", "4", {"status": "cancelled"})


async def test_a_stream_goes_on_where_it_was(api: FastAPI, tenant: Tenant, context: ApiContext) -> None:
    """From `after`, and before it from Last-Event-ID; a job that is over ends the stream even with nothing new."""
    job_id = await add_job(context, tenant)
    await add_events(context, job_id, 5)
    await cancel(context, job_id)
    for query, headers, expected in (
        ("?after=2", {}, ["3", "4", "5", "6", "6"]),
        ("?after=2", {"last_event_id": "4"}, ["5", "6", "6"]),
        ("", {"last_event_id": "6"}, ["6"]),
    ):
        async with open_stream(api, tenant, job_id, query, **headers) as client:
            await client.until("event: end")
        assert [one["id"] for one in client.records()] == expected


@pytest.mark.usefixtures("listening")
async def test_a_client_that_leaves_is_forgotten_at_once(api: FastAPI, tenant: Tenant, context: ApiContext) -> None:
    """The request is over as soon as the server hears of it, and nothing follows the job any more."""
    job_id = await add_job(context, tenant)
    await add_events(context, job_id, 1)
    async with open_stream(api, tenant, job_id) as client:
        await client.until("id: 1\n")
        assert api.state.event_hub.followers == 1
    assert (api.state.event_hub.followers, api.state.event_hub.followed_jobs) == (0, 0)
    assert not [one for one in client.records() if one.get("event") == "end"]


async def test_a_stream_does_not_outlive_its_key_for_long(
    api: FastAPI, tenant: Tenant, context: ApiContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its longest time it ends without `end`: the client connects again, and its key is looked at again."""
    monkeypatch.setattr(streams, "LONGEST_S", 0.05)
    job_id = await add_job(context, tenant)
    async with open_stream(api, tenant, job_id) as client, asyncio.timeout(PATIENCE_S):
        await client.task
    assert client.complete
    assert client.records() == []


async def test_streams_that_cannot_begin(api: FastAPI, tenant: Tenant, stranger: Tenant, context: ApiContext) -> None:
    """Unknown jobs, those of others, and positions that are none are refused like anywhere else."""
    job_id = await add_job(context, tenant)
    path = f"/v1/jobs/{job_id}/events/stream"
    error_of(await stranger.http.get(path), 404, "not_found")
    error_of(await tenant.http.get(f"/v1/jobs/{new_id('job')}/events/stream"), 404, "not_found")
    error_of(await tenant.http.get(path, headers={"authorization": "Bearer ak_no"}), 401, "unauthenticated")
    for value in ("-1", "x", "1.5", "9" * 19, "²"):
        headers = {"last-event-id": value.encode()}
        error = error_of(await tenant.http.get(path, headers=headers), 422, "invalid_input")
        assert error["param"] == "Last-Event-ID"
    error_of(await tenant.http.get(path, params={"after": -1}), 422, "invalid_input")
