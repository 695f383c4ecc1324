"""Where nobody serves yet, the doctor itself answers for a moment: so the way from the internet to these ports is tried
before anything is started."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from app.api import errors
from app.api.edge import Edge
from app.api.reach import router
from app.ports.clock import Clock, IdSource
from app.services.nodes.reach.keys import ReachKeys
from app.settings import Settings
from app.storage.directory import DirectoryStore
from app.storage.endpoints import ObjectEndpoints
from app.storage.http_server import HttpServer

_IDLE_S = 60.0
_MOST_BYTES = 64 * 1024 * 1024
_UP_WITHIN_S = 10.0


class _OneOfMany(uvicorn.Server):
    """A server beside other work: Ctrl-C is for whoever runs it."""

    def install_signal_handlers(self) -> None:
        """None."""

    @asynccontextmanager
    async def _served(self, listening: socket.socket) -> AsyncIterator[None]:
        task = asyncio.create_task(self.serve([listening]))
        try:
            async with asyncio.timeout(_UP_WITHIN_S):
                while not self.started:  # noqa: ASYNC110 (uvicorn sets a flag and no event)
                    await asyncio.sleep(0.01)
            yield
        finally:
            self.should_exit = self.force_exit = True
            await task


@asynccontextmanager
async def standing_in(settings: Settings, objects_port: int, clock: Clock, ids: IdSource) -> AsyncIterator[list[str]]:
    """Serve what nobody serves: the API's port, and that of a directory store. Yields what is stood in for."""
    async with AsyncExitStack() as stack:
        stood: list[str] = []
        api = _bound(settings.host, settings.port)
        if api is not None:
            await stack.enter_async_context(_serving(_api(settings, clock, ids), api))
            stood.append("API")
        if settings.objects_store == "directory":
            store = _bound(settings.host, objects_port)
            if store is not None:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="allpass-doctor-"))
                server = HttpServer(store, _store(settings, Path(folder), clock), idle_timeout_s=_IDLE_S)
                server.start()
                stack.push_async_callback(asyncio.to_thread, server.close, grace_s=0)
                stood.append("store")
        yield stood


def _bound(host: str, port: int) -> socket.socket | None:
    """None where somebody listens already."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError:
        listening.close()
        return None
    listening.listen(64)
    return listening


@asynccontextmanager
async def _serving(app: ASGIApp, listening: socket.socket) -> AsyncIterator[None]:
    options = uvicorn.Config(app, log_level="critical", lifespan="off", ws="none", server_header=False, loop="none")
    async with _OneOfMany(options)._served(listening):
        yield


def _api(settings: Settings, clock: Clock, ids: IdSource) -> ASGIApp:
    app = FastAPI(openapi_url=None)
    app.state.reach_keys = ReachKeys(settings.secret_key.get_secret_value())
    app.state.reach_clock = clock
    errors.install(app)
    app.include_router(router)
    return Edge(app, lambda: ids.new("req"))


def _store(settings: Settings, folder: Path, clock: Clock) -> ObjectEndpoints:
    key = settings.objects_signing_key.get_secret_value()
    store = DirectoryStore(folder, settings.objects_url, key, max_object_bytes=_MOST_BYTES, clock=clock)
    return ObjectEndpoints(store, signing_key=key.encode(), clock=clock)
