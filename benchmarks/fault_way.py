"""The way from hosts to the service, with a proxy of ours on it that breaks calls as the emulators break theirs."""

from __future__ import annotations

import httpx
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from providers.emulators.faults import FaultScript, When
from providers.emulators.wire import CallerGone, HttpFront, ScriptedError, answer_dropped, strike
from workers.machines.premises import listen, url_of

WAY_OPS = ("sync", "join", "other")
_PATIENCE_S = 60.0  # a host's call waits for orders on the other side
_PASSED = ("authorization", "content-type", "accept", "user-agent")


class HostWay:
    """`url` is what hosts call. `faults`: what will go wrong with their calls."""

    def __init__(self, service_url: str) -> None:
        self.faults = FaultScript(WAY_OPS)
        self._service = httpx.AsyncClient(base_url=service_url, trust_env=False, timeout=_PATIENCE_S)
        self._listener = listen("127.0.0.1", 0)
        self.url = url_of(self._listener)
        handlers = {ScriptedError: _answer_scripted, CallerGone: answer_dropped, ClientDisconnect: answer_dropped}
        routes = [Route("/{path:path}", self._pass_on, methods=["GET", "POST"])]
        self._front = HttpFront(Starlette(routes=routes, exception_handlers=handlers))

    async def open(self) -> None:
        await self._front.open(self._listener)

    async def close(self) -> None:
        await self._front.close()
        await self._service.aclose()

    async def _pass_on(self, request: Request) -> Response:
        op = request.url.path.rpartition("/")[2]
        fault = self.faults.take(op if op in WAY_OPS else "other")
        await strike(request, fault, When.BEFORE)
        headers = {name: request.headers[name] for name in _PASSED if name in request.headers}
        body = await request.body()
        try:
            told = await self._service.request(request.method, request.url.path, content=body, headers=headers)
        except httpx.TransportError:
            return Response("bad gateway", 502)
        await strike(request, fault, When.AFTER)
        return Response(told.content, told.status_code, media_type=told.headers.get("content-type"))


async def _answer_scripted(_: Request, error: Exception) -> Response:
    """As something on the way does, which is not the service."""
    assert isinstance(error, ScriptedError)
    return JSONResponse({"message": str(error)}, error.status or 500)
