"""Jobs as lines of a table: what a page holds, what is found, what is counted, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import event, update

from app.api.context import ApiContext
from app.core.model.job import JobEnd, JobState, PauseReason
from app.core.model.node import Tier
from app.core.model.run import RunEnd, RunState
from app.db.reading import job_lines
from app.db.tables import allocations, job_events
from tests.api.builders import add_job, add_metric, add_run
from tests.api.conftest import Tenant, error_of
from tests.conftest import ManualClock
from tests.seeds import T0_MS, new_id, seed_app

TABLE = "/v1/jobs/table"


async def read(tenant: Tenant, **params: Any) -> dict[str, Any]:
    answer = await tenant.http.get(TABLE, params=params)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def names(tenant: Tenant, **params: Any) -> list[str]:
    return [line["name"] for line in (await read(tenant, **params))["data"]]


async def test_a_line_shows_what_a_table_needs(tenant: Tenant, context: ApiContext, clock: ManualClock) -> None:
    """Where a job is, how fast it goes, when it will be done, what moving it saved, and its losses."""
    running = {"state": JobState.RUNNING, "epoch": 2, "step": 9, "total_steps": 19, "first_running_ms": T0_MS + 1000}
    job_id = await add_job(
        context, tenant, name="a", labels={"team": "nlp"}, moves=1, faults=2, spent_micros=100_000, **running
    )
    ended = {"state": RunState.ENDED, "end_reason": RunEnd.DEMOTED, "ended_ms": T0_MS + 60_000}
    await _stay(context, tenant, job_id, 1, Tier.SERVERLESS, 3_600_000, T0_MS, T0_MS + 60_000, **ended)
    await _stay(context, tenant, job_id, 2, Tier.MARKETPLACE, 360_000, T0_MS + 60_000, None)
    for step in range(10):
        await add_metric(context, job_id, step, epoch=2, at_ms=T0_MS + 60_000 + step * 2000, loss=2.0 - step / 10)
    clock.ms = T0_MS + 120_000
    (line,) = (await read(tenant))["data"]
    assert line["where"]["tier"] == "marketplace"
    assert (line["app_id"], line["app_name"], line["sweep_id"]) == (tenant.app_id, tenant.app_id, None)
    assert (line["status"], line["step"], line["total_steps"]) == ("running", 9, 19)
    assert (line["moves"], line["faults"], line["cost"], line["labels"]) == (1, 2, 100_000, {"team": "nlp"})
    assert line["step_ms"] == 2000.0
    assert line["estimated_finish_at"] == "2027-01-15T08:02:20Z"
    assert line["losses"] == pytest.approx([2.0 - step / 10 for step in range(10)])
    timeline = (await tenant.http.get(f"/v1/jobs/{job_id}/timeline")).json()
    assert line["saved"] == timeline["all_serverless"] - 100_000 > 0
    assert line["submitted_at"] == "2027-01-15T08:00:00Z" and line["started_at"] and line["ended_at"] is None


async def _stay(
    context: ApiContext,
    tenant: Tenant,
    job_id: str,
    epoch: int,
    tier: Tier,
    price: int,
    from_ms: int,
    to_ms: int | None,
    **run: Any,
) -> str:
    run_id, _ = await add_run(
        context, tenant, job_id, epoch=epoch, tier=tier, node_price_micros_per_hour=price, running_ms=from_ms, **run
    )
    async with context.database.transaction() as connection:
        held = allocations.c.run_id == run_id
        await connection.execute(update(allocations).where(held).values(from_ms=from_ms, to_ms=to_ms))
    return run_id


async def test_steps_that_were_lost_are_no_saving(tenant: Tenant, context: ApiContext, clock: ManualClock) -> None:
    """As in the timeline: what was done again would not have been paid twice."""
    job_id = await add_job(
        context, tenant, state=JobState.RUNNING, epoch=2, first_running_ms=T0_MS, spent_micros=5_000, step=50
    )
    ended = {"state": RunState.ENDED, "end_reason": RunEnd.NODE_LOST, "ended_ms": T0_MS + 60_000}
    run_id = await _stay(context, tenant, job_id, 1, Tier.SERVERLESS, 3_600_000, T0_MS, T0_MS + 60_000, **ended)
    await _stay(context, tenant, job_id, 2, Tier.SERVERLESS, 3_600_000, T0_MS + 60_000, None)
    clock.ms = T0_MS + 120_000
    (before,) = (await read(tenant))["data"]
    data = {"run_id": run_id, "steps": 30, "step": 60}
    async with context.database.transaction() as connection:
        values = {"job_id": job_id, "position": 1, "at_ms": T0_MS, "kind": "steps_lost", "message": "m", "data": data}
        await connection.execute(job_events.insert().values(values))
    (after,) = (await read(tenant))["data"]
    timeline = (await tenant.http.get(f"/v1/jobs/{job_id}/timeline")).json()
    assert after["saved"] == timeline["all_serverless"] - 5_000 < before["saved"]


async def test_a_job_that_has_done_nothing_yet_has_empty_cells(tenant: Tenant, context: ApiContext) -> None:
    """Null where nothing is known, and why it waits."""
    await add_job(context, tenant, wait_reason="no machine is free")
    await add_job(context, tenant, state=JobState.PAUSED, pause_reason=PauseReason.USER)
    over = {"end_reason": JobEnd.USER_CODE_FAILED, "end_message": "exit code 1", "ended_ms": T0_MS + 5}
    await add_job(context, tenant, state=JobState.FAILED, **over)
    failed, paused, queued = (await read(tenant))["data"]
    for line in (failed, paused, queued):
        assert [line[name] for name in ("where", "saved", "step_ms", "estimated_finish_at")] == [None] * 4
        assert line["losses"] == []
    assert (queued["reason"], queued["message"]) == (None, "no machine is free")
    assert (paused["reason"], failed["reason"], failed["message"]) == ("user", "user_code_failed", "exit code 1")


@pytest.mark.parametrize("points", [1, 2, 23, 24, 25, 100, 1000])
async def test_losses_are_thinned_to_what_fits(tenant: Tenant, context: ApiContext, points: int) -> None:
    """At most 24 real ones, in order, the first and the last among them."""
    job_id = await add_job(context, tenant, state=JobState.RUNNING, first_running_ms=T0_MS)
    for step in range(points):
        await add_metric(context, job_id, step * 10, loss=float(points - step), lr=0.1)
    (line,) = (await read(tenant))["data"]
    assert len(line["losses"]) == min(points, 24)
    assert line["losses"] == sorted(line["losses"], reverse=True)
    assert (line["losses"][0], line["losses"][-1]) == (float(points), 1.0)


async def test_other_metrics_are_no_losses(tenant: Tenant, context: ApiContext) -> None:
    """Points without one are passed over, and so is what is no number."""
    job_id = await add_job(context, tenant, state=JobState.RUNNING, first_running_ms=T0_MS)
    for step in range(200):
        await add_metric(context, job_id, step, **({"loss": float(step)} if step % 5 == 0 else {"lr": 0.1}))
    without = await add_job(context, tenant, state=JobState.RUNNING, first_running_ms=T0_MS)
    await add_metric(context, without, 1, lr=0.1)
    lines = {line["id"]: line["losses"] for line in (await read(tenant))["data"]}
    assert lines[without] == []
    assert 20 <= len(lines[job_id]) <= 24
    assert all(loss % 5 == 0 for loss in lines[job_id])


async def test_pages_go_on_where_the_one_before_ended(tenant: Tenant, context: ApiContext) -> None:
    """Newest first, each job once, whatever is submitted meanwhile; totals are of all pages."""
    made = [await add_job(context, tenant) for _ in range(5)]
    first = await read(tenant, limit=2)
    await add_job(context, tenant)
    second = await read(tenant, limit=2, cursor=first["next_cursor"])
    third = await read(tenant, limit=2, cursor=second["next_cursor"])
    assert [line["id"] for page in (first, second, third) for line in page["data"]] == made[::-1]
    assert third["next_cursor"] is None
    assert (first["total"], third["total"]) == (5, 6)


async def test_counts_are_of_all_states_and_the_total_of_those_that_are_asked_for(
    tenant: Tenant, context: ApiContext
) -> None:
    """So that a filter by state shows what another one would find."""
    for state, count in ((JobState.RUNNING, 3), (JobState.WAITING, 2), (JobState.QUEUED, 1)):
        for _ in range(count):
            await add_job(context, tenant, state=state, name=f"x-{state}")
    every = {"running": 3, "waiting": 2, "queued": 1}
    whole = await read(tenant)
    assert (whole["counts"], whole["total"]) == (every, 6)
    some = await read(tenant, status="running,waiting", limit=1)
    assert (some["counts"], some["total"]) == (every, 5)
    repeated = await read(tenant, status=["running", "queued"])
    assert {line["status"] for line in repeated["data"]} == {"running", "queued"}
    found = await read(tenant, q="x-run", status="waiting")
    assert (found["counts"], found["total"], found["data"]) == ({"running": 3}, 0, [])


async def test_of_very_many_jobs_not_all_are_counted(
    tenant: Tenant, context: ApiContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more than the bound says that there are more."""
    monkeypatch.setattr(job_lines, "MOST_COUNTED", 3)
    for _ in range(6):
        await add_job(context, tenant, state=JobState.RUNNING)
    await add_job(context, tenant)
    told = await read(tenant)
    assert (told["counts"], told["total"], len(told["data"])) == ({"running": 4, "queued": 1}, 5, 7)


async def test_text_is_looked_for_where_people_look(tenant: Tenant, context: ApiContext) -> None:
    """The beginning of an id, a part of a name, of the app's name, or of a label's value; in any case."""
    async with context.database.transaction() as connection:
        other_app = await seed_app(connection, tenant.project_id)
    ids = {
        "Long-LoRA": await add_job(context, tenant, name="Long-LoRA"),
        "labelled": await add_job(context, tenant, name="labelled", labels={"Team": "Speech", "lora": "no"}),
        "plain": await add_job(context, tenant, name="plain"),
    }
    elsewhere = await add_job(context, Tenant(tenant.project_id, *other_app, tenant.key, tenant.http), name="elsewhere")
    assert await names(tenant, q="LORA") == ["Long-LoRA"], "a label's key is no value"
    assert await names(tenant, q="  speec ") == ["labelled"]
    assert await names(tenant, q=ids["plain"].lower()) == ["plain"]
    assert await names(tenant, q=elsewhere[:12]) == ["elsewhere", "plain", "labelled", "Long-LoRA"]
    assert await names(tenant, q=other_app[0][4:].lower()) == ["elsewhere"]
    assert await names(tenant, q=ids["plain"][-6:]) == [], "only the beginning of an id"
    assert len(await names(tenant, q="")) == len(await names(tenant, q=" ")) == 4


@pytest.mark.parametrize(
    "q", ["%", "c_1", "\\", "100%", "a_c", "'; DROP TABLE jobs; --", "<b>", "é", "\N{PILE OF POO}"]
)
async def test_what_stands_for_anything_elsewhere_stands_for_itself(
    tenant: Tenant, context: ApiContext, q: str
) -> None:
    """No wildcard, no SQL, no markup: text."""
    await add_job(context, tenant, name="abc 100")
    await add_job(context, tenant, name=f"with {q} in it")
    assert await names(tenant, q=q) == [f"with {q} in it"]


async def test_the_other_filters_go_together(tenant: Tenant, context: ApiContext) -> None:
    """Labels, app, sweep and the key that submitted it: all of them at once."""
    sweep_id, key_id = new_id("swp"), new_id("key")
    labels = {"team": "nlp", "draft": ""}
    await add_job(context, tenant, name="all", sweep_id=sweep_id, key_id=key_id, labels=labels)
    await add_job(context, tenant, name="sweep", sweep_id=sweep_id)
    await add_job(context, tenant, name="key", key_id=key_id, labels={"team": "vision"})
    assert await names(tenant, sweep_id=sweep_id) == ["sweep", "all"]
    assert await names(tenant, key_id=key_id) == ["key", "all"]
    assert await names(tenant, app_id=tenant.app_id, label=["team:nlp", "draft:"]) == ["all"]
    assert await names(tenant, key_id=key_id, label="team:vision", sweep_id=sweep_id) == []
    assert await names(tenant, app_id=new_id("app")) == []


async def test_projects_never_see_each_others_rows(tenant: Tenant, stranger: Tenant, context: ApiContext) -> None:
    """Not by any filter, and not in counts."""
    sweep_id = new_id("swp")
    theirs = await add_job(context, stranger, name="theirs", sweep_id=sweep_id, labels={"a": "b"})
    await add_job(context, tenant, name="ours")
    filters: list[dict[str, Any]] = [
        {}, {"q": "theirs"}, {"q": theirs}, {"q": stranger.app_id}, {"sweep_id": sweep_id}, {"app_id": stranger.app_id},
        {"label": "a:b"}, {"cursor": new_id("job")},
    ]  # fmt: skip
    for params in filters:
        told = await read(tenant, **params)
        assert {line["name"] for line in told["data"]} <= {"ours"}, params
        assert sum(told["counts"].values()) <= 1, params


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"status": "flying"}, "status"),
        ({"status": "running,"}, "status"),
        ({"label": "team"}, "label"),
        ({"label": ":nlp"}, "label"),
        ({"q": "x" * 201}, "q"),
        ({"app_id": "llama"}, "app_id"),
        ({"app_id": "job_01M7XQPVE2A96009XYYX"}, "app_id"),
        ({"sweep_id": "%"}, "sweep_id"),
        ({"key_id": "ak_1"}, "key_id"),
        ({"cursor": "x"}, "cursor"),
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
    ],
)
async def test_what_is_no_filter_is_refused_with_what_would_be_one(
    tenant: Tenant, params: dict[str, Any], param: str
) -> None:
    """The field, the value, and the fix."""
    error = error_of(await tenant.http.get(TABLE, params=params), 422, "invalid_input")
    assert error["param"].startswith(param)
    assert len(error["message"]) < 400


async def test_a_text_that_no_database_holds_is_refused(tenant: Tenant) -> None:
    """NUL in an address is told as such."""
    error = error_of(await tenant.http.get(f"{TABLE}?q=a%00b"), 422, "invalid_input")
    assert "NUL" in error["message"]


async def test_markup_in_names_is_plain_data(tenant: Tenant, context: ApiContext) -> None:
    """It comes as JSON and as it was given: who shows it shows text."""
    evil = "<script>alert(1)</script>\"'&"
    await add_job(context, tenant, name=evil, labels={"a": evil}, wait_reason=evil)
    answer = await tenant.http.get(TABLE, params={"q": "<SCRIPT>"})
    assert answer.headers["content-type"] == "application/json"
    (line,) = answer.json()["data"]
    assert (line["name"], line["labels"], line["message"]) == (evil, {"a": evil}, evil)


async def test_a_longer_page_asks_no_more_questions(
    api: FastAPI, tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """As many statements for fifty running jobs as for two."""
    counted: list[str] = []

    async def fill(count: int) -> None:
        for _ in range(count):
            job_id = await add_job(
                context, tenant, state=JobState.RUNNING, epoch=1, first_running_ms=T0_MS, total_steps=9
            )
            await add_run(context, tenant, job_id)
            await add_metric(context, job_id, 1, loss=1.0)
            await add_metric(context, job_id, 2, loss=0.5)

    def count(*arguments: Any) -> None:
        counted.append(arguments[2])

    engine = context.database._engine.sync_engine
    await fill(2)
    await read(tenant)
    event.listen(engine, "before_cursor_execute", count)
    try:
        await read(tenant)
        few = len(counted)
        await fill(48)
        counted.clear()
        told = await read(tenant)
    finally:
        event.remove(engine, "before_cursor_execute", count)
    assert len(told["data"]) == 50
    assert len(counted) == few <= 12


async def test_table_is_no_id_of_a_job(tenant: Tenant, context: ApiContext) -> None:
    """Its paths go before those of a job, which are as they were."""
    job_id = await add_job(context, tenant)
    assert (await tenant.http.get(f"/v1/jobs/{job_id}")).json()["id"] == job_id
    error_of(await tenant.http.get("/v1/jobs/tables"), 404, "not_found")

    for method in ("POST", "PATCH", "PUT", "DELETE"):
        for path in (TABLE, f"{TABLE}/stream"):
            answer = await tenant.http.request(method, path)
            error_of(answer, 405, "method_not_allowed")
            assert answer.headers["allow"] == "GET"
