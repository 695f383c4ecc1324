"""The servers that `benchmarks.streaming` compares: ours, and an empty app that does the same without a database."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn

from allpass.wire.agent import LogReport
from app.api.app import create_app
from app.api.context import ApiContext
from app.db.engine import Database, make_engine
from app.db.listen import Listener
from app.settings import Settings
from app.storage.directory import DirectoryStore
from app.system import RandomIds, SystemClock

SIGNING_KEY = "benchmark" * 5


def objects_of(folder: str) -> DirectoryStore:
    """The store that the service and the benchmark share."""
    return DirectoryStore(
        Path(folder) / "objects", "http://127.0.0.1:1", SIGNING_KEY, max_object_bytes=2**30, clock=SystemClock()
    )


def ours(world: dict[str, Any]) -> Any:
    """The whole application."""
    clock = SystemClock()
    settings = Settings(
        database_url=world["database_url"],
        objects_signing_key=SIGNING_KEY,
        secret_key=SIGNING_KEY,
        rate_limit_per_s=0,
    )
    context = ApiContext(
        database=Database(make_engine(world["database_url"], pool_size=8, timeout_s=30)),
        listener=Listener(world["database_url"], timeout_s=30),
        objects=objects_of(world["folder"]),
        settings=settings,
        clock=clock,
        ids=RandomIds(clock),
    )

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        await context.listener.start()
        yield
        await context.listener.close()
        await context.database.close()

    return create_app(context, lifespan=lifespan)


def empty(_world: dict[str, Any]) -> Any:
    """The same two routes on FastAPI without a database: an event is what POST /tick says, a report is parsed."""
    from fastapi import FastAPI, Response
    from fastapi.responses import StreamingResponse

    app = FastAPI()
    state = {"event": b"", "news": asyncio.Event()}

    async def stream() -> AsyncIterator[bytes]:
        yield b"retry: 1000\n\n"
        while True:
            # The dict holds both an event and its text.
            await state["news"].wait()  # type: ignore[attr-defined]
            yield state["event"]  # type: ignore[misc]  # the same

    @app.get("/v1/jobs/{job_id}/events/stream")
    async def follow(job_id: str) -> Response:
        return StreamingResponse(stream(), media_type="text/event-stream")

    @app.post("/tick", status_code=204)
    async def tick(number: int) -> None:
        news, state["news"] = state["news"], asyncio.Event()
        state["event"] = b"id: %d\ndata: %b\n\n" % (number, b"x" * 120)
        news.set()  # type: ignore[attr-defined]  # the same

    @app.post("/v1/agent/logs", status_code=204)
    async def logs(report: LogReport) -> None:
        return None

    return app


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    application = {"ours": ours, "empty": empty}[sys.argv[1]](given)
    uvicorn.run(
        application,
        host="127.0.0.1",
        port=given["port"],
        log_level="error",
        access_log=False,
        loop="uvloop",
        timeout_graceful_shutdown=1,
    )
