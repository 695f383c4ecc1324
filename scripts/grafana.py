"""Write deploy/monitoring/dashboard.json. Run `.venv/bin/python scripts/grafana.py` after a change here or of a series.

Every process tells the same of the whole service, so most queries take the largest over processes; what is a process's
own is added up. The data source is a variable: whoever imports the dashboard chooses theirs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "deploy" / "monitoring" / "dashboard.json"
WIDTH, HEIGHT = 24, 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
Query = tuple[str, str]  # the expression, and the legend of its lines


@dataclass(frozen=True)
class Panel:
    """`limits`: from these values on it is orange, and red. None: its colours say nothing."""

    title: str
    told: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False
    limits: tuple[float, float] | None = None
    words: tuple[tuple[str, str, str], ...] = ()  # of a value: what is shown, and its colour


def _of(name: str, where: str = "") -> str:
    return f'{name}{{job="$job"{", " if where else ""}{where}}}'


def now(name: str, by: str = "", where: str = "") -> str:
    """A gauge of the whole service."""
    return f"max by ({by}) ({_of(name, where)})" if by else f"max({_of(name, where)})"


def rate(name: str, by: str = "", where: str = "", span: str = "$__rate_interval") -> str:
    """Per second, of a counter of the whole service."""
    counted = f"rate({_of(name, where)}[{span}])"
    return f"max by ({by}) ({counted})" if by else f"max({counted})"


def grown(name: str, by: str, where: str = "", span: str = "$__range") -> str:
    """By how much a counter of the whole service has grown."""
    return f"max by ({by}) (increase({_of(name, where)}[{span}]))"


def quantile(share: float, name: str, by: str = "", span: str = "30m") -> str:
    """Of a histogram of the whole service: over half an hour, for there may be few."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, {rate(f'{name}_bucket', labels, span=span)})"


def own(name: str, by: str, where: str = "") -> str:
    """Per second, of a counter that each process has of its own: added up."""
    return f"sum by ({by}) (rate({_of(name, where)}[$__rate_interval]))"


def both(name: str, by: str = "", legend: str = "") -> tuple[Query, ...]:
    """The median, and what one in twenty exceeds."""
    return tuple((quantile(share, name, by), f"{legend}{told}") for share, told in ((0.5, "median"), (0.95, "95 %")))


_GOOD, _BAD = "green", "red"
_WAITING = now("allpass_jobs", "state, tier", 'state=~"queued|waiting"')
_RUNNING = now("allpass_jobs", "state, tier", 'state="running"')
_NODES = now("allpass_nodes", "state, tier, provider")
_FAILED = own("allpass_http_requests_total", "method, route, status", 'status=~"5.."')
_SLOW = own("allpass_http_request_seconds_bucket", "le, method, route")
USERS = (
    Panel("Waiting jobs", "Jobs that wait for a place: never started, or between two machines.", "short",
          ((f"sum({_WAITING}) or vector(0)", "waiting"),), "stat", 4),
    Panel("Running jobs", "Jobs whose code runs now.", "short",
          ((f"sum({_RUNNING}) or vector(0)", "running"),), "stat", 4),
    Panel("Late jobs", "Unfinished jobs past their deadline; inferred are those whose user set none.", "short",
          ((now("allpass_jobs_late", "deadline"), "{{deadline}}"),), "stat", 4, limits=(1, 5)),
    Panel("Paused jobs", "By what paused them: user, cost_cap, budget, day_limit, or internal_error, which is ours.",
          "short", ((now("allpass_jobs_paused", "reason"), "{{reason}}"),), width=12),
    Panel("Start latency", "From submission until user code first ran, by the job's start rule; jobs with when-cheap "
          "wait on purpose. Over 30 minutes.", "s",
          both("allpass_start_latency_seconds", "start", "{{start}}, ")),
    Panel("Move pause", "For how long training paused for a move, from the last step on one machine to the first on "
          "the next. Over 30 minutes.", "s", both("allpass_move_pause_seconds")),
    Panel("Jobs by state", "Jobs that are not over.", "short",
          ((f"sum by (state) ({now('allpass_jobs', 'state, tier')})", "{{state}}"),), stacked=True),
    Panel("Jobs that ended", "In the last hour, by how.", "short",
          ((f"sum by (state, reason) ({grown('allpass_jobs_ended_total', 'state, reason, late', span='1h')})",
            "{{state}}, {{reason}}"),), width=12),
    Panel("Moves that ended", "In the last hour: done, or abandoned, after which the job stays where it is.", "short",
          ((grown("allpass_moves_ended_total", "state", span="1h"), "{{state}}"),), width=12),
)  # fmt: skip
MONEY = (
    Panel("Dollars per hour", "What the machines that are not gone cost in an hour.", "currencyUSD",
          ((f"sum({now('allpass_nodes_usd_per_hour', 'tier, provider')}) or vector(0)", "per hour"),), "stat", 4),
    Panel("Spent", "What the ledger has booked in the time that is shown.", "currencyUSD",
          ((f"sum({grown('allpass_spent_usd_total', 'tier, provider')})", "spent"),), "stat", 4),
    Panel("Meter behind", "How long ago the machine that was metered longest ago was metered: what limits do not see "
          "yet.", "s", ((now("allpass_meter_behind_seconds"), "behind"),), "stat", 4, limits=(120, 600)),
    Panel("Budgets", "By how much of them is spent: near is four fifths, used_up is all.", "short",
          ((now("allpass_budgets", "state"), "{{state}}"),), width=12),
    Panel("Dollars per hour by tier", "What the machines that are not gone cost in an hour.", "currencyUSD",
          ((f"sum by (tier) ({now('allpass_nodes_usd_per_hour', 'tier, provider')})", "{{tier}}"),), stacked=True),
    Panel("Booked per hour by tier", "How fast the ledger grows, over ten minutes.", "currencyUSD",
          ((f"3600 * sum by (tier) ({rate('allpass_spent_usd_total', 'tier, provider', span='10m')})", "{{tier}}"),),
          stacked=True),
    Panel("Spent by provider", "What the ledger has booked since the database was made.", "currencyUSD",
          ((f"sum by (provider) ({now('allpass_spent_usd_total', 'tier, provider')})", "{{provider}}"),)),
)  # fmt: skip
MACHINES = (
    Panel("Machines by state", "Machines that are not gone. Unreachable or terminating ones that stay are money.",
          "short", ((f"sum by (state) ({_NODES})", "{{state}}"),), stacked=True),
    Panel("Machines by tier", "Machines that are not gone.", "short",
          ((f"sum by (tier) ({_NODES})", "{{tier}}"),), stacked=True),
    Panel("Machines by provider", "Machines that are not gone, and orphans among them: machines that no job of ours "
          "was rented for.", "short",
          ((f"sum by (provider) ({_NODES})", "{{provider}}"),
           (f"{now('allpass_orphan_nodes', 'provider')} > 0", "{{provider}}, orphans"))),
)  # fmt: skip
CONTROL = (
    Panel("Leader", "Whether some process decides.", "short", ((now("allpass_leader"), "leader"),), "stat", 4,
          words=(("0", "none", _BAD), ("1", "leads", _GOOD))),
    Panel("Last tick", "Age of the newest decision that is stored: ALLPASS_TICK_S (60 s) at most, and a little.", "s",
          ((f"time() - {now('allpass_last_tick_timestamp_seconds')}", "age"),), "stat", 4, limits=(90, 120)),
    Panel("Chores that fail or hang", "Parts of the control loop whose last turn failed, or did not end.", "short",
          ((f"sum({now('allpass_chore_failing', 'chore')})", "fail"),
           (f"sum({now('allpass_chore_overdue', 'chore')})", "hang")), "stat", 4, limits=(1, 3)),
    Panel("Decision time", "To observe, decide and enact once, of decisions that are stored. Over 30 minutes.", "s",
          both("allpass_tick_seconds"), width=12),
    Panel("Pressure p", "Above 1, the rented GPUs alone cannot keep every deadline.", "short",
          ((now("allpass_policy_signal", where='signal="p"'), "p"),), width=6),
    Panel("Serverless budget F", "For how long a job trains on serverless before it should move.", "s",
          ((now("allpass_policy_signal", where='signal="F_s"'), "F"),), width=6),
    Panel("Capacity C", "How much the rented machines do, in GPUs.", "short",
          ((now("allpass_policy_signal", where='signal="C"'), "C"),), width=6),
    Panel("Demand D", "What unfinished jobs still need, in GPU seconds.", "s",
          ((now("allpass_policy_signal", where='signal="D_gpu_s"'), "D"),), width=6),
    Panel("Dropped actions", "Planned, and not enacted since what they were planned for had changed: per minute.",
          "short", ((f"60 * {rate('allpass_actions_dropped_total')}", "dropped"),)),
    Panel("Failures inside", "Decisions, actions and chores, per minute. GET /readyz says what is left behind.",
          "short",
          ((f"60 * {rate('allpass_decisions_failed_total')}", "decisions"),
           (f"60 * {rate('allpass_actions_failed_total', 'kind')} > 0", "action {{kind}}"),
           (f"60 * {rate('allpass_chore_failures_total', 'chore')} > 0", "chore {{chore}}"),
           (f"60 * {rate('allpass_plan_breaches_total', 'invariant')} > 0", "refused: {{invariant}}"))),
    Panel("What fails now", "Jobs, nodes and rows that fail again and again, by what fails of them.", "short",
          ((now("allpass_items_failing", "what"), "{{what}}"),)),
)  # fmt: skip
PROVIDERS = (
    Panel("Errors of providers", "Calls that failed, per minute, by code.", "short",
          ((f"60 * sum by (provider, code) ({rate('allpass_provider_errors_total', 'provider, call, code')}) > 0",
            "{{provider}}, {{code}}"),)),
    Panel("Pending operations", "Calls that are still to succeed; with an error, they were tried and are tried again.",
          "short", ((now("allpass_provider_operations_pending", "provider, kind, error"),
                     "{{provider}}, {{kind}} {{error}}"),)),
    Panel("Operations", "Calls that create or end machines, per minute, by what came of them.", "short",
          ((f"60 * {rate('allpass_provider_operations_total', 'provider, kind, outcome')} > 0",
            "{{provider}}, {{kind}}: {{outcome}}"),)),
    Panel("Time of operations", "From the intent to create or end a machine until that was over, tries included; what "
          "one in twenty exceeds.", "s",
          ((quantile(0.95, "allpass_provider_operation_seconds", "provider, kind"), "{{provider}}, {{kind}}"),)),
    Panel("Since the last success", "How long ago a call to the provider was answered as it should be.", "s",
          ((f"time() - {now('allpass_provider_last_success_timestamp_seconds', 'provider')}", "{{provider}}"),)),
    Panel("Refused or paused", "Whether it refuses our credentials, or the account's limit stops renting there (1).",
          "short", ((now("allpass_provider_refused", "provider"), "{{provider}} refuses us"),
                    (now("allpass_provider_paused", "provider"), "{{provider}} is paused"))),
)  # fmt: skip
SERVICE = (
    Panel("Requests", "By status, over all processes that are scraped.", "reqps",
          ((own("allpass_http_requests_total", "status"), "{{status}}"),), stacked=True),
    Panel("Requests that failed", "With 5xx, by route: the service's fault, or its database's.", "reqps",
          ((f"{_FAILED} > 0", "{{method}} {{route}} {{status}}"),)),
    Panel("Latency by route", "What one request in twenty exceeds, of the ten slowest routes. Long polls and agents' "
          "sync last as long as they wait.", "s",
          ((f"topk(10, histogram_quantile(0.95, {_SLOW}))", "{{method}} {{route}}"),)),
    Panel("From agents", "Text of logs that agents send.", "Bps",
          ((f"sum(rate({_of('allpass_log_bytes_total')}[$__rate_interval]))", "logs"),), width=6),
    Panel("Streams of events", "That are open, by process; and reads for followers that had fallen behind, per second.",
          "short", ((f"sum by (instance) ({_of('allpass_event_followers')})", "{{instance}}"),
                    (f"sum(rate({_of('allpass_event_catch_ups_total')}[$__rate_interval]))", "catch-ups")), width=6),
    Panel("Memory", "By process.", "bytes",
          ((f"sum by (instance) ({_of('process_resident_memory_bytes')})", "{{instance}}"),), width=6),
    Panel("Processors", "By process: 1 is one of them, always.", "short",
          ((own("process_cpu_seconds_total", "instance"), "{{instance}}"),), width=6),
    Panel("Database", "Whether it answers each process (1), and releases that run.", "short",
          ((f"min by (instance) ({_of('allpass_database_up')})", "{{instance}}"),
           (f"count by (version) ({_of('allpass_build_info')})", "release {{version}}")), width=24),
)  # fmt: skip
ROWS = (
    ("What users feel", USERS),
    ("Money", MONEY),
    ("Machines", MACHINES),
    ("Control loop", CONTROL),
    ("Providers", PROVIDERS),
    ("Service", SERVICE),
)


def _placed() -> Iterator[dict[str, Any]]:
    """From left to right, and below what does not fit; rows of panels have a title above them."""
    x = y = 0
    for title, panels in ROWS:
        y += HEIGHT if x else 0
        x = 0
        yield {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _at(0, y, WIDTH, 1)}
        y += 1
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y = 0, y + HEIGHT
            yield _drawn(panel) | {"gridPos": _at(x, y, panel.width, HEIGHT)}
            x += panel.width


def _at(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _drawn(panel: Panel) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.told,
        "datasource": SOURCE,
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            for place, (expression, legend) in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _look(panel), "overrides": []},
        "options": _options(panel),
    }


def _look(panel: Panel) -> dict[str, Any]:
    found: dict[str, Any] = {"unit": panel.unit, "min": 0, "noValue": "-"}
    if panel.kind == "timeseries":
        found["custom"] = {"lineWidth": 1, "fillOpacity": 30 if panel.stacked else 0, "showPoints": "never"}
        found["custom"]["stacking"] = {"mode": "normal" if panel.stacked else "none"}
    if panel.limits is not None:
        orange, red = panel.limits
        steps = [("green", None), ("orange", orange), ("red", red)]
        found["thresholds"] = {"mode": "absolute", "steps": [{"color": one, "value": at} for one, at in steps]}
    if panel.words:
        options = {value: {"text": told, "color": colour} for value, told, colour in panel.words}
        found["mappings"] = [{"type": "value", "options": options}]
    return found


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        coloured = panel.limits is not None or bool(panel.words)
        shown = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"reduceOptions": shown, "colorMode": "value" if coloured else "none", "graphMode": "area"}
    return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}


def render() -> str:
    """The file."""
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    query = "label_values(allpass_build_info, job)"
    job = {"name": "job", "label": "Installation", "type": "query", "datasource": SOURCE, "query": query, "refresh": 2}
    dashboard = {
        "title": "Allpass",
        "description": "A fine-tuning service on rented GPUs: what its users feel, what it costs, and what fails.",
        "tags": ["allpass"],
        "id": None,
        "schemaVersion": 39,
        "editable": True,
        "timezone": "browser",
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [source, job]},
        "annotations": {"list": []},
        "panels": [{"id": number} | panel for number, panel in enumerate(_placed(), 1)],
    }
    return json.dumps(dashboard, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(render())
