"""GET /metrics in the text format of Prometheus.

Series named `allpass_http_*`, `allpass_event_*`, `allpass_log_*`, `allpass_metric_*` and `process_*` are this
process's, as are `allpass_build_info` and `allpass_database_up`. All others describe the whole service
(`app.api.service_series`): they are read from the database, the same from every process, and their counters go on when
a process is replaced. No series is about one job, key or project.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Iterable, Iterator

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from allpass import __version__
from app.api.auth import bearer
from app.api.context import ApiContext
from app.api.errors import documented
from app.api.families import counter, gauge, histogram
from app.api.measure import Tally
from app.api.service_series import of_service
from app.errors import Forbidden, Unauthenticated
from app.services.reading.fleet_metrics import FleetMetrics, FleetWatch
from app.services.reading.follow_events import EventHub

router = APIRouter(tags=["health"])

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip"})


class ApiMetrics(Collector):
    """The numbers of one application in a registry of its own."""

    def __init__(self, context: ApiContext, tally: Tally, hub: EventHub) -> None:
        self._watch = FleetWatch(context.database, context.clock)
        self._tally = tally
        self._hub = hub
        self._fleet = FleetMetrics()
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    async def render(self) -> bytes:
        """All series, as text. Without the database, those that need it are left out."""
        self._fleet = await self._watch.look()
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily(
            "allpass_build_info", "1, with the release that this process runs", labels=["version"]
        )
        build.add_metric([__version__], 1)
        yield build
        told = "Whether the database answers this process (1) or not (0)"
        yield gauge("allpass_database_up", told, int(self._fleet.known))
        yield from _of_process(self._tally, self._hub)
        if self._fleet.known:
            yield from of_service(self._fleet)


@router.get(
    "/metrics",
    operation_id="read_metrics",
    summary="Numbers for Prometheus",
    response_class=Response,
    responses={**documented(401, 403), 200: {"content": {"text/plain": {}}, "description": "Text format 0.0.4"}},
)
async def get_metrics(request: Request) -> Response:
    """With `ALLPASS_METRICS_TOKEN` set: `Authorization: Bearer TOKEN`. Without it: from this very host only."""
    context: ApiContext = request.app.state.context
    token = context.settings.metrics_token
    if token is not None:
        given = bearer(request.scope["headers"]) or ""
        if not secrets.compare_digest(given.encode(), token.get_secret_value().encode()):
            raise Unauthenticated("send Authorization: Bearer with the value of ALLPASS_METRICS_TOKEN")
    elif not _is_from_here(request):
        raise Forbidden("numbers are given to this host only; set ALLPASS_METRICS_TOKEN to read them from elsewhere")
    monitor: ApiMetrics = request.app.state.monitor
    return Response(await monitor.render(), media_type=CONTENT_TYPE)


def _is_from_here(request: Request) -> bool:
    """A loopback peer that speaks for itself: a proxy on this host, which says for whom it asks, is not enough."""
    if request.client is None or any(name in _FORWARDED for name, _ in request.scope["headers"]):
        return False
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def _of_process(tally: Tally, hub: EventHub) -> Iterator[Metric]:
    requests = {(method, route, str(status)): count for (method, route, status), count in tally.requests.items()}
    labels = ["method", "route"]
    yield counter("allpass_http_requests", "Requests that this process answered", [*labels, "status"], requests)
    told = "Time until this process answered, waits of long polls included"
    yield histogram("allpass_http_request_seconds", told, labels, tally.durations)
    took = "that this process took from agents"
    yield counter("allpass_log_chunks", f"Pieces of logs {took}", [], {(): tally.log_chunks})
    yield counter("allpass_log_bytes", f"Bytes of logs {took}", [], {(): tally.log_bytes})
    yield counter("allpass_log_lines", f"Lines of logs {took}", [], {(): tally.log_lines})
    yield counter("allpass_metric_points", f"Measured points {took}", [], {(): tally.metric_points})
    yield gauge("allpass_event_followers", "Streams of events that are open at this process", hub.followers)
    yield gauge("allpass_event_followed_jobs", "Jobs that they follow", hub.followed_jobs)
    yield counter("allpass_event_reads", "Reads for all followers of a job", [], {(): hub.reads})
    yield counter("allpass_event_catch_ups", "Reads for one follower that had fallen behind", [], {(): hub.catch_ups})
