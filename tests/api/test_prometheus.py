"""GET /metrics: who may read it, and that its numbers are those of the database and of this process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr
from sqlalchemy import update

from app.api.app import create_app
from app.api.context import ApiContext
from app.core.model.budget import Budget, Period
from app.core.model.health import PartKind
from app.core.model.job import JobState
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.run import RunState
from app.core.policy import PolicyState
from app.db.decisions import leadership
from app.db.decisions.health import count_failures, set_health
from app.db.decisions.ticks import TickRow, add_tick
from app.db.money.budgets import set_budget
from app.db.offers.provider_states import add_errors, set_configured, set_success
from app.db.tables import nodes
from app.ports.objects import content_key
from app.services.reading.fleet_metrics import KEPT_MS
from tests.api.builders import add_job, add_ledger_line, add_run
from tests.api.conftest import Tenant, error_of
from tests.conftest import ManualClock
from tests.seeds import T0_MS, new_id, seed_node

Numbers = dict[tuple[str, tuple[tuple[str, str], ...]], float]
TOKEN = "a token of sixteen or more"


def numbers_of(text: str) -> Numbers:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scrape(api: FastAPI, clock: ManualClock | None = None) -> Numbers:
    """The numbers, read anew when a clock is given."""
    if clock is not None:
        clock.advance(ms=KEPT_MS)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=api), base_url="http://allpass") as http:
        response = await http.get("/metrics")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return numbers_of(response.text)


def of(numbers: Numbers, name: str, **labels: str) -> float | None:
    return numbers.get((name, tuple(sorted(labels.items()))))


def labels_in(numbers: Numbers) -> Iterator[tuple[str, str]]:
    for _, labels in numbers:
        yield from labels


async def test_jobs_nodes_and_money_are_those_of_the_database(
    api: FastAPI, tenant: Tenant, context: ApiContext
) -> None:
    """Unfinished jobs by state and tier, machines that are not gone, the ledger's sum by tier; no single job."""
    job_id = await add_job(context, tenant, state=JobState.RUNNING, spent_micros=5)
    _, node_id = await add_run(context, tenant, job_id, tier=Tier.SERVERLESS)
    _, gone_id = await add_run(
        context, tenant, await add_job(context, tenant), node_state=NodeState.TERMINATED, state=RunState.ENDED
    )
    await add_job(context, tenant, state=JobState.SUCCEEDED)
    await add_ledger_line(context, tenant, node_id, job_id, None, "idle", 1_500_000)
    await add_ledger_line(context, tenant, gone_id, None, None, "idle", 250_000)
    await add_ledger_line(context, tenant, gone_id, None, None, "idle", 1)
    numbers = await scrape(api)
    assert of(numbers, "allpass_jobs", state="running", tier="serverless") == 1
    assert of(numbers, "allpass_jobs", state="queued", tier="none") == 1
    assert of(numbers, "allpass_jobs", state="succeeded", tier="none") is None
    assert of(numbers, "allpass_nodes", state="ready", tier="serverless", provider="local") == 1
    assert of(numbers, "allpass_nodes", state="terminated", tier="marketplace", provider="local") is None
    assert of(numbers, "allpass_spent_usd_total", tier="serverless", provider="local") == 1.5
    assert of(numbers, "allpass_spent_usd_total", tier="marketplace", provider="local") == 0.250001
    assert of(numbers, "allpass_database_up") == 1
    values = {value for _, value in labels_in(numbers)}
    assert not values & {job_id, node_id, tenant.project_id, tenant.app_id}
    assert of(numbers, "process_resident_memory_bytes")


async def test_what_wants_looking_at_is_counted(api: FastAPI, tenant: Tenant, context: ApiContext) -> None:
    """Jobs past their deadlines and paused ones, machines of nobody, what machines cost per hour, and how far the meter
    is behind. A job that its user paused is late on purpose."""
    now_ms = context.clock.now_ms()
    past = {"deadline_ms": now_ms - 1}
    await add_job(context, tenant, **past)
    await add_job(context, tenant, state=JobState.PAUSED, pause_reason="user", **past)
    await add_job(context, tenant, state=JobState.PAUSED, pause_reason="internal_error", deadline_given=False, **past)
    await add_job(context, tenant, state=JobState.SUCCEEDED, ended_ms=now_ms, **past)
    async with context.database.transaction() as connection:
        cheap = {"price_micros_per_hour": 250_000, "billed_from_ms": now_ms - 90_000}
        await seed_node(connection, tenant.project_id, orphan=True, **cheap)
        await seed_node(connection, tenant.project_id, metered_until_ms=now_ms - 1_000, **cheap)
        gone = {"state": NodeState.TERMINATED, "orphan": True, "meter_closed": True, "billed_from_ms": 1}
        await seed_node(connection, tenant.project_id, **gone)
    numbers = await scrape(api)
    assert of(numbers, "allpass_jobs_late", deadline="given") == 1
    assert of(numbers, "allpass_jobs_late", deadline="inferred") == 1
    assert of(numbers, "allpass_jobs_paused", reason="user") == 1
    assert of(numbers, "allpass_jobs_paused", reason="internal_error") == 1
    assert of(numbers, "allpass_orphan_nodes", provider="local") == 1
    assert of(numbers, "allpass_nodes_usd_per_hour", tier="marketplace", provider="local") == 0.5
    assert of(numbers, "allpass_meter_behind_seconds") == 90


async def test_budgets_are_counted_by_what_is_left(api: FastAPI, tenant: Tenant, context: ApiContext) -> None:
    """None of them is named."""
    spent = {"key_id": None, "provider": None, "period": Period.MONTH}
    job_id = await add_job(context, tenant)
    _, node_id = await add_run(context, tenant, job_id, node_meter_closed=True)
    await add_ledger_line(context, tenant, node_id, job_id, None, "idle", 900_000)
    async with context.database.transaction() as connection:
        for project_id, micros in ((tenant.project_id, 900_000), (None, 1_000_000)):
            budget = Budget(new_id("bud"), project_id, amount=Money(micros), **spent)
            await set_budget(connection, budget, set_by="key", now_ms=T0_MS)
    numbers = await scrape(api)
    assert of(numbers, "allpass_budgets", state="used_up") == 1
    assert of(numbers, "allpass_budgets", state="near") == 1
    assert of(numbers, "allpass_budgets", state="within") == 0


async def test_the_leader_and_its_last_decision(api: FastAPI, context: ApiContext, clock: ManualClock) -> None:
    """Whether somebody leads, how long decisions took, and what the policy saw in the last one."""

    async def decide(duration_ms: int, budget_s: float) -> None:
        async with context.database.transaction() as connection:
            plan = {"signals": [["F_s", budget_s], ["jobs_waiting", 2.0]]}
            state = PolicyState()
            tick = TickRow(clock.now_ms(), 1, "tick", "fixed-threshold", state, plan, 1, duration_ms)
            await add_tick(connection, tick)

    numbers = await scrape(api, clock)
    assert of(numbers, "allpass_leader") == 0
    assert of(numbers, "allpass_tick_seconds_count") == 0
    async with context.database.transaction() as connection:
        assert await leadership.acquire(connection, "control", "me", lease_s=60)
    await decide(20, 300)
    assert of(await scrape(api, clock), "allpass_tick_seconds_count") == 1
    assert of(await scrape(api), "allpass_tick_seconds_bucket", le="0.02") == 1
    await decide(100, 200)
    await decide(40, 250)
    numbers = await scrape(api, clock)
    assert (of(numbers, "allpass_leader"), of(numbers, "allpass_leader_term")) == (1, 1)
    assert of(numbers, "allpass_tick_seconds_count") == 3
    assert of(numbers, "allpass_tick_seconds_sum") == pytest.approx(0.16)
    assert of(numbers, "allpass_policy_signal", signal="F_s") == 250
    assert of(numbers, "allpass_last_tick_dropped_actions") == 1
    assert of(numbers, "allpass_actions_dropped_total") == 3


async def test_what_fails_inside_is_counted(api: FastAPI, context: ApiContext, clock: ManualClock) -> None:
    """Since the database was made, and the same from every process: an alarm needs no more."""
    before = await scrape(api, clock)
    assert of(before, "allpass_decisions_failed_total") == 0
    now_ms = clock.now_ms()
    async with context.database.transaction() as connection:
        await count_failures(connection, PartKind.DECISION, "", 2)
        await count_failures(connection, PartKind.ACTION, "start", 3)
        await count_failures(connection, PartKind.ROW, "jobs", 1)
        for failures in (2, 0, 3):
            await set_health(connection, PartKind.CHORE, "meter", failures=failures, now_ms=now_ms)
        for chore, due_ms in (("sweep", now_ms), ("caps", now_ms + 60_000)):
            await set_health(connection, PartKind.CHORE, chore, failures=0, now_ms=now_ms, due_ms=due_ms)
    numbers = await scrape(api, clock)
    assert of(numbers, "allpass_decisions_failed_total") == 2
    assert of(numbers, "allpass_actions_failed_total", kind="start") == 3
    assert of(numbers, "allpass_rows_unreadable_total", table="jobs") == 1
    assert of(numbers, "allpass_chore_failures_total", chore="meter") == 5
    assert [of(numbers, "allpass_chore_failing", chore=chore) for chore in ("meter", "sweep", "caps")] == [1, 0, 0]
    assert [of(numbers, "allpass_chore_overdue", chore=chore) for chore in ("meter", "sweep", "caps")] == [0, 1, 0]


async def test_a_provider_that_is_not_used_any_more_wakes_nobody(api: FastAPI, context: ApiContext) -> None:
    """What its calls came to stays counted; how it is doing now is told of those in the settings."""
    async with context.database.transaction() as connection:
        await set_configured(connection, ["vast", "modal"])
        for name in ("vast", "modal"):
            await set_success(connection, name, at_ms=T0_MS)
            await add_errors(connection, name, {("create", "no_capacity"): 2})
        await set_configured(connection, ["modal"])
    numbers = await scrape(api)
    for name in ("refused", "paused", "last_success_timestamp_seconds"):
        assert of(numbers, f"allpass_provider_{name}", provider="modal") is not None
        assert of(numbers, f"allpass_provider_{name}", provider="vast") is None
    errors = {"call": "create", "code": "no_capacity"}
    assert of(numbers, "allpass_provider_errors_total", provider="vast", **errors) == 2


async def test_requests_are_counted_by_route_and_status(api: FastAPI, tenant: Tenant, context: ApiContext) -> None:
    """By the route's template; submitting without a duration; what is no route of ours is one label."""
    job_id = await add_job(context, tenant)
    for path in (f"/v1/jobs/{job_id}", f"/v1/jobs/{new_id('job')}", "/nothing/here", "/nothing/else"):
        await tenant.http.get(path)
    body = {"app_id": tenant.app_id}
    assert (await tenant.http.post("/v1/jobs", json=body)).status_code == 201
    assert (await tenant.http.post("/v1/jobs", json={})).status_code == 422
    numbers = await scrape(api)
    route = "/v1/jobs/{job_id}"
    assert of(numbers, "allpass_http_requests_total", method="GET", route=route, status="200") == 1
    assert of(numbers, "allpass_http_requests_total", method="GET", route=route, status="404") == 1
    assert of(numbers, "allpass_http_requests_total", method="GET", route="other", status="404") == 2
    assert of(numbers, "allpass_http_requests_total", method="POST", route="/v1/jobs", status="201") == 1
    assert of(numbers, "allpass_http_requests_total", method="POST", route="/v1/jobs", status="422") == 1
    assert of(numbers, "allpass_http_request_seconds_count", method="GET", route=route) == 2
    assert of(numbers, "allpass_http_request_seconds_count", method="POST", route="/v1/jobs") is None


async def test_what_agents_send_is_counted(api: FastAPI, tenant: Tenant, context: ApiContext) -> None:
    """Pieces of logs with their bytes and lines, and measured points; only what was taken."""
    job_id = await add_job(context, tenant, state=JobState.RUNNING, epoch=1)
    run_id, node_id = await add_run(context, tenant, job_id, state=RunState.RUNNING)
    text = b"one\ntwo\n"
    sha256 = hashlib.sha256(text).hexdigest()
    async with context.database.transaction() as connection:
        digest = hashlib.sha256(b"node token").digest()
        await connection.execute(update(nodes).where(nodes.c.id == node_id).values(token_sha256=digest))
    chunk = {"sequence": 0, "sha256": sha256, "size_bytes": 8, "line_count": 2, "first_ms": 1, "last_ms": 2}
    writer = {"run_id": run_id, "job_id": job_id, "epoch": 1}
    headers = {"authorization": "Bearer node token"}
    refused = await tenant.http.post("/v1/agent/logs", json={**writer, "chunks": [chunk]}, headers=headers)
    assert refused.status_code == 409
    await context.objects.put(content_key(tenant.project_id, sha256), text, sha256=sha256)
    taken = await tenant.http.post("/v1/agent/logs", json={**writer, "chunks": [chunk]}, headers=headers)
    points = [{"step": n, "at_ms": n, "values": {"loss": 1.0}} for n in range(3)]
    measured = await tenant.http.post("/v1/agent/metrics", json={**writer, "points": points}, headers=headers)
    assert (taken.status_code, measured.status_code) == (204, 204), taken.text + measured.text
    numbers = await scrape(api)
    assert of(numbers, "allpass_log_chunks_total") == 1
    assert of(numbers, "allpass_log_bytes_total") == 8
    assert of(numbers, "allpass_log_lines_total") == 2
    assert of(numbers, "allpass_metric_points_total") == 3


async def test_scrapes_within_a_moment_are_one_read(
    api: FastAPI, tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """For five seconds the database is not asked again; then it is."""
    assert of(await scrape(api), "allpass_jobs", state="queued", tier="none") is None
    await add_job(context, tenant)
    clock.advance(ms=KEPT_MS - 1)
    assert of(await scrape(api), "allpass_jobs", state="queued", tier="none") is None
    clock.advance(ms=1)
    assert of(await scrape(api), "allpass_jobs", state="queued", tier="none") == 1


async def test_without_the_database_the_process_still_answers(
    api: FastAPI, context: ApiContext, clock: ManualClock
) -> None:
    """Its own numbers stay; those that nobody knows are left out rather than told stale."""
    await context.database.close()
    broken = replace(context, database=_Broken())  # type: ignore[arg-type]  # it only has what is asked
    numbers = await scrape(create_app(broken), clock)
    assert of(numbers, "allpass_database_up") == 0
    assert of(numbers, "allpass_leader") is None
    assert of(numbers, "allpass_event_followers") == 0


class _Broken:
    """A database that is away."""

    def transaction(self) -> object:
        from app.errors import Unavailable

        raise Unavailable("the database does not answer; try again")


async def read_from(context: ApiContext, host: str, **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(app=create_app(context), client=(host, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://allpass") as http:
        return await http.get("/metrics", headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1"])
async def test_this_host_may_read_without_a_token(context: ApiContext, host: str) -> None:
    """Loopback is trusted when no token is set, unless a proxy speaks for somebody else."""
    assert (await read_from(context, host)).status_code == 200
    error_of(await read_from(context, host, x_forwarded_for="127.0.0.1"), 403, "forbidden")


@pytest.mark.parametrize("host", ["10.0.0.1", "::ffff:10.0.0.1", "not-an-address"])
async def test_other_hosts_need_the_token(context: ApiContext, host: str) -> None:
    """Without a token nobody else reads; with one, everybody who sends it, and nobody who does not."""
    error_of(await read_from(context, host), 403, "forbidden")
    settings = context.settings.model_copy(update={"metrics_token": SecretStr(TOKEN)})
    guarded = replace(context, settings=settings)
    assert (await read_from(guarded, host, authorization=f"Bearer {TOKEN}")).status_code == 200
    for headers in ({}, {"authorization": "Bearer no"}, {"authorization": f"Basic {TOKEN}"}):
        error_of(await read_from(guarded, host, **headers), 401, "unauthenticated")
    error_of(await read_from(guarded, "127.0.0.1"), 401, "unauthenticated")
