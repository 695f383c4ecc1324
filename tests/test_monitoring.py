"""deploy/monitoring asks for what the service tells, and a rule or a panel that is wrong is found before an outage."""

from __future__ import annotations

import itertools
import json
import os
import re
import runpy
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from app.api.context import ApiContext
from app.core.model.budget import Budget, Period
from app.core.model.health import PartKind
from app.core.model.job import JobState
from app.core.model.money import Money
from app.core.model.move import MoveState
from app.core.policy import PolicyState
from app.db.decisions import leadership
from app.db.decisions.health import count_failures, set_health
from app.db.decisions.item_failures import add_failure
from app.db.decisions.ticks import TickRow, add_tick
from app.db.money.budgets import set_budget
from app.db.offers.provider_states import add_errors, set_configured, set_success
from app.db.tables import moves, provider_operations
from tests.api.builders import add_job, add_ledger_line, add_run
from tests.api.conftest import Tenant, api, context, tenant  # noqa: F401 (fixtures)
from tests.promql import grouped_by, labels_of, series_of
from tests.seeds import T0_MS, new_id, seed_node

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "deploy" / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
GUIDE = (ROOT / "docs" / "guides" / "monitoring.md").read_text()
OF_PROMETHEUS = {"up": {"job", "instance"}}
ADDED = {"job", "instance"}  # by Prometheus, to every series
UNITS = {"short", "s", "currencyUSD", "reqps", "Bps", "bytes"}
EXPRESSIONS = [
    *((f"panel {panel['title']}", target["expr"]) for panel in PANELS for target in panel["targets"]),
    *((f"alert {rule['alert']}", rule["expr"]) for rule in RULES),
]


async def _fill(context: ApiContext, tenant: Tenant) -> None:  # noqa: F811 (a fixture's value)
    """Something of everything that is told by labels."""
    now_ms = context.clock.now_ms()
    job_id = await add_job(context, tenant, state=JobState.RUNNING, first_running_ms=now_ms)
    run_id, node_id = await add_run(context, tenant, job_id)
    target_id, _ = await add_run(context, tenant, job_id, epoch=2)
    await add_ledger_line(context, tenant, node_id, job_id, None, "idle", 1)
    await add_job(context, tenant, state=JobState.PAUSED, pause_reason="internal_error")
    await add_job(context, tenant, state=JobState.FAILED, end_reason="node_lost", ended_ms=now_ms)
    move = {"source_run_id": run_id, "target_run_id": target_id, "begun_ms": 1, "ended_ms": 2, "reason": "cheaper"}
    operation = {"node_id": node_id, "provider": "vast", "kind": "create", "created_ms": 1, "not_before_ms": 0}
    async with context.database.transaction() as connection:
        await connection.execute(moves.insert().values(id="m", job_id=job_id, state=MoveState.DONE, **move))
        for state, ended_ms in (("pending", None), ("done", now_ms)):
            row = {"id": new_id("op"), "state": state, "ended_ms": ended_ms, **operation}
            await connection.execute(provider_operations.insert().values(row))
        await seed_node(connection, tenant.project_id, orphan=True)
        await leadership.acquire(connection, leadership.CONTROL, "me", lease_s=60)
        plan = {"signals": [["p", 1.0], ["F_s", 300.0], ["C", 1.0], ["D_gpu_s", 1.0]]}
        await add_tick(connection, TickRow(now_ms, 1, "tick", "allpass", PolicyState(), plan, 1, 5))
        await set_health(connection, PartKind.CHORE, "meter", failures=1, now_ms=now_ms, due_ms=now_ms)
        await count_failures(connection, PartKind.ROW, "jobs", 1)
        await add_failure(connection, job_id, "place", now_ms=now_ms)
        await set_configured(connection, ["vast"])
        await set_success(connection, "vast", at_ms=now_ms)
        await add_errors(connection, "vast", {("create", "no_capacity"): 1})
        budget = Budget(new_id("bud"), None, None, None, Period.DAY, Money(1))
        await set_budget(connection, budget, set_by="key", now_ms=T0_MS)


@pytest.fixture
async def scraped(api: FastAPI, tenant: Tenant, context: ApiContext) -> str:  # noqa: F811 (fixtures)
    """What GET /metrics of a service with data tells."""
    await _fill(context, tenant)
    await tenant.http.get("/v1/jobs")
    answered = await tenant.http.get("/metrics", headers={"authorization": ""})
    assert answered.status_code == 200, answered.text
    return answered.text


def _labels(scraped: str) -> dict[str, set[str]]:
    """Of each series that has a value."""
    found: dict[str, set[str]] = {name: set(labels) for name, labels in OF_PROMETHEUS.items()}
    for family in text_string_to_metric_families(scraped):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels, ADDED)
    return found


async def test_what_panels_and_alerts_ask_for_is_told(scraped: str) -> None:
    """Each series has values, and the labels that it is asked by and told apart by."""
    told = _labels(scraped)
    unknown = {(where, name) for where, expression in EXPRESSIONS for name in series_of(expression) - told.keys()}
    assert unknown == set()
    for where, expression in EXPRESSIONS:
        assert {(name, label) for name, label in labels_of(expression) if label not in told[name]} == set(), where
        assert grouped_by(expression) <= set().union(*(told[name] for name in series_of(expression))), where
    assert len(EXPRESSIONS) > 60  # the search itself finds something


async def test_every_series_of_the_service_is_shown_or_watched(scraped: str) -> None:
    """Or is said here to be for those who look closer."""
    shown = {name for _, expression in EXPRESSIONS for name in series_of(expression)}
    families = {family.name for family in text_string_to_metric_families(scraped) if family.name.startswith("allpass_")}
    left = {name for name in families if not any(one.startswith(name) for one in shown)}
    assert left == {
        "allpass_event_followed_jobs", "allpass_event_reads", "allpass_last_tick_dropped_actions",
        "allpass_leader_term", "allpass_log_chunks", "allpass_log_lines", "allpass_metric_points",
        "allpass_rows_unreadable",
    }  # fmt: skip


def test_series_and_labels_of_an_expression() -> None:
    """Functions, labels, words and durations are no series."""
    text = 'sum by (job, le) (rate(a_bucket{job="$job", status=~"5.."}[5m])) > 0.05 * b unless on (x) time() - c{} == 0'
    assert series_of(text) == {"a_bucket", "b", "c"}
    assert set(labels_of(text)) == {("a_bucket", "job"), ("a_bucket", "status")}
    assert grouped_by(text) == {"job", "le", "x"}
    assert series_of('count(up{job="and or"}[$__rate_interval]) or vector(0)') == {"up"}


def test_the_dashboard_is_what_the_script_makes() -> None:
    """Whoever changes a panel runs `.venv/bin/python scripts/grafana.py`."""
    assert (FOLDER / "dashboard.json").read_text() == runpy.run_path(str(ROOT / "scripts" / "grafana.py"))["render"]()


def test_panels_say_what_they_show() -> None:
    """A title of its own, a sentence, a unit, and a legend for each line."""
    titles = [panel["title"] for panel in PANELS]
    assert len(set(titles)) == len(titles)
    for panel in PANELS:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]


def test_panels_have_places_of_their_own() -> None:
    """Ids are unique, and no panel covers another or leaves the grid."""
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for one, other in itertools.combinations([panel["gridPos"] for panel in DASHBOARD["panels"]], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"], (one, other)
    assert all(0 <= panel["gridPos"]["x"] <= 24 - panel["gridPos"]["w"] for panel in DASHBOARD["panels"])


def test_the_dashboard_belongs_to_no_installation() -> None:
    """Whoever imports it chooses the data source; ids are given by their Grafana."""
    assert DASHBOARD["id"] is None and "uid" not in DASHBOARD
    sources = set(_values(DASHBOARD, "datasource"))
    assert sources == {("prometheus", "${datasource}")}
    assert [one["type"] for one in DASHBOARD["templating"]["list"]] == ["datasource", "query"]


def _values(part: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(part, dict):
        for name, value in part.items():
            if name == key:
                yield value["type"], value["uid"]
            else:
                yield from _values(value, key)
    elif isinstance(part, list):
        for value in part:
            yield from _values(value, key)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_happens_and_what_to_do(rule: dict[str, Any]) -> None:
    """How long it waits, how bad it is, words for whoever is woken; it is in the guide, and in a test that fires it."""
    assert re.fullmatch(r"\d+m", rule["for"])
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(rule["annotations"]) == {"summary", "description"}
    assert len(rule["annotations"]["summary"]) < 120
    assert rule["annotations"]["description"].endswith(".")
    assert f"`{rule['alert']}`" in GUIDE
    assert f'alertname="{rule["alert"]}", alertstate="firing"' in (FOLDER / "alerts.test.yml").read_text()


def test_what_is_to_be_scraped() -> None:
    """With the token from a file, and the rules that are there; the job's name is the one that the rules ask for."""
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    assert all((FOLDER / name).is_file() for name in config["rule_files"])
    (scrape,) = config["scrape_configs"]
    assert scrape["authorization"] == {"credentials_file": "/etc/prometheus/allpass-token"}
    assert any(f'job="{scrape["job_name"]}"' in rule["expr"] for rule in RULES)


def _promtool(*words: str, text: str = "") -> str:
    """What it says; it has to be content. `PROMTOOL` names it where it is not on the path."""
    tool = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if tool is None:
        pytest.skip("there is no promtool here")
    done = subprocess.run([tool, *words], cwd=FOLDER, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_reads_the_rules_and_they_fire_as_they_should() -> None:
    assert f"{len(RULES)} rules found" in _promtool("check", "rules", "alerts.yml")
    assert "SUCCESS" in _promtool("test", "rules", "alerts.test.yml")


def test_promtool_reads_the_scrape_configuration() -> None:
    """Its token is elsewhere."""
    _promtool("check", "config", "--syntax-only", "prometheus.yml")


async def test_promtool_finds_nothing_to_mend_in_what_is_told(scraped: str) -> None:
    assert _promtool("check", "metrics", text=scraped) == ""
