"""Counting what this process serves. Plain numbers: `app.api.prometheus` turns them into text when somebody asks."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from allpass.wire.agent import LogReport, MetricReport
from app.errors import AllpassError
from app.services.kit.histogram import Histogram

REQUEST_BOUNDS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SUBMITS = frozenset({"/v1/jobs", "/v1/sweeps"})
_OTHER = "other"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


@dataclass(slots=True)
class Tally:
    """Since the process began. Routes are templates and methods a closed list: no client can add names."""

    requests: Counter[tuple[str, str, int]] = field(default_factory=Counter)  # by method, route, status
    durations: dict[tuple[str, str], Histogram] = field(default_factory=dict)  # by method and route
    log_chunks: int = 0
    log_bytes: int = 0
    log_lines: int = 0
    metric_points: int = 0

    def took_logs(self, report: LogReport) -> None:
        self.log_chunks += len(report.chunks)
        self.log_bytes += sum(chunk.size_bytes for chunk in report.chunks)
        self.log_lines += sum(chunk.line_count for chunk in report.chunks)

    def took_metrics(self, report: MetricReport) -> None:
        self.metric_points += len(report.points)


async def tally_of(request: Request) -> Tally:
    """The counts of the app that serves this request (a FastAPI dependency)."""
    tally: Tally = request.app.state.tally
    return tally


class RequestMeter:
    """ASGI: counts requests by route and status, and times them. Submitting is only counted: that path is hot.

    Streams are counted when they end and not timed: they last as long as somebody listens.
    """

    def __init__(self, app: ASGIApp, tally: Tally) -> None:
        self._app = app
        self._tally = tally

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["method"] == "POST" and scope["path"] in _SUBMITS:
            await self._submit(scope, receive, send)
        else:
            await self._other(scope, receive, send)

    async def _submit(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 500
        try:
            await self._app(scope, receive, send)
            status = 201
        except AllpassError as error:
            status = error.http_status
            raise
        finally:
            self._tally.requests["POST", scope["path"], status] += 1

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        status = 500

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sent)
        except AllpassError as error:
            status = error.http_status
            raise
        finally:
            self._count(scope, status, time.perf_counter() - started)

    def _count(self, scope: Scope, status: int, took_s: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else _OTHER
        route = getattr(scope.get("route"), "path", _OTHER)
        self._tally.requests[method, route, status] += 1
        if route.endswith("/stream"):
            return
        durations = self._tally.durations.get((method, route))
        if durations is None:
            durations = self._tally.durations[method, route] = Histogram(REQUEST_BOUNDS_S)
        durations.observe(took_s)
