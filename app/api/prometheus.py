"""GET /metrics in the text format of Prometheus.

Series named `allpass_http_*`, `allpass_event_*`, `allpass_log_*` and `allpass_metric_*` are this process's; all others
describe the whole service and are the same from every process. No series is about one job, key or project.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from allpass import __version__
from app.api.auth import bearer
from app.api.context import ApiContext
from app.api.errors import documented
from app.api.measure import Tally
from app.core.model.health import PartKind
from app.core.model.money import MICROS_PER_USD
from app.errors import Forbidden, Unauthenticated
from app.services.kit.histogram import Histogram
from app.services.reading.fleet_metrics import FleetMetrics, FleetWatch
from app.services.reading.follow_events import EventHub

router = APIRouter(tags=["health"])

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip"})


class ApiMetrics(Collector):
    """The numbers of one application in a registry of its own."""

    def __init__(self, context: ApiContext, tally: Tally, hub: EventHub) -> None:
        self._watch = FleetWatch(context.database, context.clock)
        self._clock = context.clock
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
        build = GaugeMetricFamily("allpass_build_info", "The version that runs", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        yield _gauge("allpass_database_up", "Whether the database answered", int(self._fleet.known))
        yield from _of_process(self._tally, self._hub)
        if self._fleet.known:
            yield from _standing(self._fleet)
            yield from _providers(self._fleet, self._clock.now_ms())
            yield from _happened(self._fleet)
            yield from _failures(self._fleet)


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
    yield _counter("allpass_http_requests", "Requests answered", ["method", "route", "status"], requests)
    yield _histogram(
        "allpass_http_request_seconds", "Until they were answered, waits included", ["method", "route"], tally.durations
    )
    yield _counter("allpass_log_chunks", "Pieces of logs taken from agents", [], {(): tally.log_chunks})
    yield _counter("allpass_log_bytes", "Their text in bytes", [], {(): tally.log_bytes})
    yield _counter("allpass_log_lines", "Their lines", [], {(): tally.log_lines})
    yield _counter("allpass_metric_points", "Measured points taken from agents", [], {(): tally.metric_points})
    yield _gauge("allpass_event_followers", "Streams of events that are open", hub.followers)
    yield _gauge("allpass_event_followed_jobs", "Jobs that they follow", hub.followed_jobs)
    yield _counter("allpass_event_reads", "Reads for all followers of a job", [], {(): hub.reads})
    yield _counter("allpass_event_catch_ups", "Reads for one that had fallen behind", [], {(): hub.catch_ups})


def _standing(fleet: FleetMetrics) -> Iterator[Metric]:
    by_kind: dict[str, dict[tuple[str, ...], float]] = {kind: {} for kind in ("job", "node", "spent", "pending")}
    term = None
    for count in fleet.standing:
        if count.what == "leader":
            term = count.number
        else:
            by_kind[count.what][count.labels] = count.number
    jobs = {labels[:2]: number for labels, number in by_kind["job"].items()}
    yield _gauges("allpass_jobs", "Jobs that are not over", ["state", "tier"], jobs)
    yield _gauges("allpass_nodes", "Machines that are not gone", ["state", "tier", "provider"], by_kind["node"])
    spent = {labels[:2]: number / MICROS_PER_USD for labels, number in by_kind["spent"].items()}
    yield _counter("allpass_spent_usd", "The sum of the ledger", ["tier", "provider"], spent)
    yield _gauges(
        "allpass_provider_operations_pending",
        "Intended calls to providers, by the error of the last try",
        ["provider", "kind", "error"],
        by_kind["pending"],
    )
    yield _gauge("allpass_leader", "Whether some process leads", int(term is not None))
    if term is not None:
        yield _gauge("allpass_leader_term", "Its term", term)
    if fleet.tick is not None:
        yield _gauge("allpass_last_tick_timestamp_seconds", "When a decision was last kept", fleet.tick.at_ms / 1000)
        yield _gauge("allpass_last_tick_dropped_actions", "What of it could not be enacted", fleet.tick.dropped)
    signals = {(name,): value for name, value in fleet.signals.items()}
    yield _gauges("allpass_policy_signal", "What the policy saw in that decision, e.g. F_s", ["signal"], signals)


def _providers(fleet: FleetMetrics, now_ms: int) -> Iterator[Metric]:
    errors = {(one.provider, one.call, one.code): one.count for one in fleet.provider_errors}
    yield _counter(
        "allpass_provider_errors", "Calls to providers that failed, by code", ["provider", "call", "code"], errors
    )
    refused = {(one.provider,): int(one.refused_ms is not None) for one in fleet.providers}
    yield _gauges("allpass_provider_refused", "Whether it refuses our credentials: an alarm", ["provider"], refused)
    paused = {(one.provider,): int(one.is_paused(now_ms)) for one in fleet.providers}
    yield _gauges("allpass_provider_paused", "Whether the account's limit stops renting there", ["provider"], paused)
    heard = {(one.provider,): one.last_success_ms / 1000 for one in fleet.providers if one.last_success_ms is not None}
    told = "When a call was last answered, to about a minute"
    yield _gauges("allpass_provider_last_success_timestamp_seconds", told, ["provider"], heard)


def _happened(fleet: FleetMetrics) -> Iterator[Metric]:
    yield _counter("allpass_jobs_ended", "Jobs that are over", ["state", "reason"], fleet.ended)
    yield _histogram("allpass_queue_wait_seconds", "From submission to user code", [], {(): fleet.queue_wait})
    yield _histogram("allpass_tick_seconds", "How long decisions took", [], {(): fleet.tick_time})
    yield _counter(
        "allpass_provider_operations", "Calls that are over", ["provider", "kind", "outcome"], fleet.outcomes
    )
    yield _histogram(
        "allpass_provider_operation_seconds", "From intent to end", ["provider", "kind"], fleet.operation_time
    )


def _failures(fleet: FleetMetrics) -> Iterator[Metric]:
    """What failed inside of the service: an alarm on any of them finds what each leaves running."""
    counted: dict[PartKind, dict[tuple[str, ...], float]] = {kind: {} for kind in PartKind}
    for part in fleet.health:
        counted[part.kind][(part.name,) if part.name else ()] = part.failures
    decisions = counted[PartKind.DECISION] or {(): 0}
    yield _counter("allpass_decisions_failed", "Decisions that failed, or were made without what fails", [], decisions)
    yield _counter("allpass_actions_failed", "Planned actions that failed", ["kind"], counted[PartKind.ACTION])
    yield _counter("allpass_chore_failures", "Failures in what the leader does", ["chore"], counted[PartKind.CHORE])
    told = "Actions that were refused because they would have broken an invariant"
    yield _counter("allpass_plan_breaches", told, ["invariant"], counted[PartKind.INVARIANT])
    yield _counter("allpass_rows_unreadable", "Rows found that cannot be read", ["table"], counted[PartKind.ROW])


def _gauge(name: str, told: str, value: float) -> Metric:
    return GaugeMetricFamily(name, told, value=value)


def _gauges(name: str, told: str, labels: list[str], values: Mapping[Any, float]) -> Metric:
    family = GaugeMetricFamily(name, told, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(list(key), value)
    return family


def _counter(name: str, told: str, labels: list[str], values: Mapping[Any, float]) -> Metric:
    family = CounterMetricFamily(name, told, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(list(key), value)
    return family


def _histogram(name: str, told: str, labels: list[str], values: Mapping[Any, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, told, labels=labels)
    for key, histogram in sorted(values.items(), key=lambda item: item[0]):
        buckets = [
            ("+Inf" if bound == float("inf") else f"{bound:g}", count) for bound, count in histogram.cumulative()
        ]
        family.add_metric(list(key), buckets, sum_value=histogram.total)
    return family
