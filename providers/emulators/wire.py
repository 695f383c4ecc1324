"""For emulators that speak HTTP: a server that can break a connection without an answer, and faults around calls."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from providers.emulators.faults import DROP, ERROR, HANG, SLOW, Fault, When

if TYPE_CHECKING:
    from uvicorn._types import ASGIApplication

ABORT = "allpass.abort"  # in the request's scope: closes the connection without a word
_GRACEFUL_S = 1


class ScriptedError(Exception):
    """A fault of kind `error`: the emulator's exception handler renders it in its company's format.

    `status` is None where the fault names none; the emulator then takes 500, or what `code` implies.
    """

    def __init__(self, fault: Fault) -> None:
        status = fault.args.get("status")
        super().__init__(str(fault.args.get("message", "something went wrong (scripted)")))
        self.message_given = "message" in fault.args
        self.status = status if isinstance(status, int) else None
        self.code: str | None = fault.args.get("code")
        self.retry_after_s: float | None = fault.args.get("retry_after_s")


async def strike(request: Request, fault: Fault | None, when: When) -> None:
    """Let a fault of one of the four kinds that all know happen, if this is its side of the effect."""
    if fault is None or fault.when is not when:
        return
    if fault.kind == DROP:
        await drop(request)
    elif fault.kind == HANG:
        await gone(request)
    elif fault.kind == SLOW:
        await request.body()  # it has arrived: a caller who leaves meanwhile does not take it back
        await asyncio.sleep(fault.ms / 1000)
    elif fault.kind == ERROR:
        raise ScriptedError(fault)


async def drop(request: Request) -> None:
    """Close the connection without an answer, as a failing network does. Never returns: raises Dropped."""
    request.scope[ABORT]()
    await gone(request)


async def gone(request: Request) -> None:
    """Say nothing until the caller has left. Never returns: raises Dropped."""
    try:
        await request.body()
        while (await request.receive())["type"] != "http.disconnect":
            continue
    except asyncio.CancelledError:
        request.scope[ABORT]()  # we are leaving ourselves: still not a word
    raise CallerGone


class CallerGone(Exception):
    """There is nobody left to answer; `answer_dropped` ends the request quietly."""


async def answer_dropped(_: Request, __: Exception) -> Response:
    """Exception handler for Dropped: what nobody reads."""
    return Response(status_code=500)


class HttpFront:
    """Serves an application on a socket; see `serving.Front`. `tls`: files of its certificate and key."""

    def __init__(self, app: Starlette, tls: tuple[Path, Path] | None = None) -> None:
        self._app = app
        self._tls = tls
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def open(self, listener: socket.socket) -> None:
        """Accept connections; returns when that works."""
        certificate, key = self._tls or (None, None)
        config = uvicorn.Config(
            cast("ASGIApplication", self._app),  # two spellings of the same ASGI types
            http=_AbortableProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=_GRACEFUL_S,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        waiting = asyncio.create_task(self._server.listens.wait())
        await asyncio.wait([waiting, self._serving], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._serving.done():
            self._serving.result()
            raise OSError("the HTTP server ended as it started")

    async def close(self) -> None:
        """Finish what is under way; harmless when repeated."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait([self._serving])


class _Server(uvicorn.Server):
    """Says when it listens, and leaves the signals to the process around it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _AbortableProtocol(HttpToolsProtocol):
    """Lets the application close a connection without an answer, which ASGI has no word for."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)[ABORT] = self.transport.abort
