"""Finding, reading and cancelling jobs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from allpass.wire.jobs import Job, JobSize, Timeline
from app.api.context import ApiContext
from app.api.cursors import text_cursor
from app.core.model.job import JobEnd, JobState, PauseReason
from app.core.model.node import NodeState, Tier
from app.core.model.run import RunEnd, RunState
from app.db.runs.live_runs import close_allocations
from app.db.tables import (
    allocations,
    job_events,
    jobs,
    nodes,
    offers,
    provider_operations,
    run_jobs,
    runs,
    size_speeds,
)
from tests.api.builders import add_job, add_ledger_line, add_run
from tests.api.conftest import Tenant, error_of
from tests.conftest import ManualClock
from tests.seeds import T0_MS, new_id

HOUR_MS = 3_600_000


async def listed(tenant: Tenant, **query: Any) -> list[str]:
    response = await tenant.http.get("/v1/jobs", params=query)
    assert response.status_code == 200, response.text
    return [job["id"] for job in response.json()["data"]]


async def walk(tenant: Tenant, limit: int) -> list[list[str]]:
    """All pages of the list of jobs, by following its cursors."""
    pages, cursor = [], None
    while True:
        query = {"limit": limit} | ({} if cursor is None else {"cursor": cursor})
        page = (await tenant.http.get("/v1/jobs", params=query)).json()
        pages.append([job["id"] for job in page["data"]])
        cursor = page["next_cursor"]
        if cursor is None:
            return pages


@given(limits=st.lists(st.integers(1, 9), min_size=1, max_size=4), count=st.integers(0, 3))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_pages_of_any_size_show_every_job_once(
    tenant: Tenant, context: ApiContext, limits: list[int], count: int
) -> None:
    """Newest first, none twice, none left out, every page full but the last."""
    for _ in range(count):
        await add_job(context, tenant)
    async with context.database.transaction() as connection:
        every = sorted((await connection.execute(select(jobs.c.id))).scalars(), reverse=True)
    for limit in limits:
        pages = await walk(tenant, limit)
        assert [one for page in pages for one in page] == every
        assert all(len(page) == limit for page in pages[:-1])


async def test_jobs_that_arrive_while_pages_are_read_do_not_disturb_them(tenant: Tenant, context: ApiContext) -> None:
    """The rest of the list is what it was when the first page was read."""
    old = [await add_job(context, tenant) for _ in range(6)]
    first = (await tenant.http.get("/v1/jobs", params={"limit": 3})).json()
    await add_job(context, tenant)
    rest = (await tenant.http.get("/v1/jobs", params={"limit": 3, "cursor": first["next_cursor"]})).json()
    assert [job["id"] for job in first["data"] + rest["data"]] == sorted(old, reverse=True)


async def test_lists_are_filtered(tenant: Tenant, context: ApiContext) -> None:
    """By states (repeated or with commas), by app (id or name), by labels (all of them), together."""
    running = await add_job(context, tenant, state=JobState.RUNNING, labels={"team": "a", "x": "1:2"})
    failed = await add_job(context, tenant, state=JobState.FAILED, labels={"team": "a"})
    queued = await add_job(context, tenant, labels={"team": "b"})
    assert await listed(tenant) == [queued, failed, running]
    assert await listed(tenant, status="running") == [running]
    assert await listed(tenant, status="running,failed") == [failed, running]
    assert await listed(tenant, status=["queued", "failed"]) == [queued, failed]
    assert await listed(tenant, app=tenant.app_id) == [queued, failed, running]
    assert await listed(tenant, app="another") == []
    assert await listed(tenant, label="team:a") == [failed, running]
    assert await listed(tenant, label=["team:a", "x:1:2"]) == [running]
    assert await listed(tenant, label="team:a", status="failed") == [failed]
    for query in ({"status": "done"}, {"status": "running,"}, {"label": "team"}, {"label": ":a"}):
        error = error_of(await tenant.http.get("/v1/jobs", params=query), 422, "invalid_input")
        assert error["param"] in query


async def test_what_belongs_to_another_project_does_not_exist(
    tenant: Tenant, stranger: Tenant, context: ApiContext
) -> None:
    """Neither in lists nor by id, and it cannot be cancelled; unknown and malformed ids are the same 404."""
    job_id = await add_job(context, tenant)
    assert await listed(stranger) == []
    for http, one in ((stranger.http, job_id), (tenant.http, new_id("job")), (tenant.http, "job_1")):
        for path in ("", "/events", "/logs", "/metrics", "/checkpoints", "/artifacts", "/timeline", "/sizes"):
            error_of(await http.get(f"/v1/jobs/{one}{path}"), 404, "not_found")
        error_of(await http.get(f"/v1/jobs/{one}/checkpoints/{new_id('ckpt')}/files"), 404, "not_found")
        error_of(await http.post(f"/v1/jobs/{one}/cancel"), 404, "not_found")
    assert (await tenant.http.get(f"/v1/jobs/{job_id}")).json()["status"] == "queued"


async def test_a_running_job_says_where_it_is(tenant: Tenant, context: ApiContext) -> None:
    """The node it holds GPUs of, with the price of these GPUs; a job that is nowhere says nothing."""
    job_id = await add_job(
        context,
        tenant,
        state=JobState.RUNNING,
        epoch=3,
        moves=1,
        step=1204,
        checkpoint_step=1200,
        spent_micros=1_020_000,
    )
    _, node_id = await add_run(
        context, tenant, job_id, epoch=3, node_gpu_count=4, node_price_micros_per_hour=2_840_000, gpu_indices=(1, 2)
    )
    waiting = await add_job(context, tenant, state=JobState.WAITING, wait_reason="needs a node")
    job = Job.model_validate((await tenant.http.get(f"/v1/jobs/{job_id}")).json())
    assert job.where is not None
    assert (job.where.node_id, job.where.gpu_count, job.where.price_per_hour) == (node_id, 2, 1_420_000)
    assert (job.epoch, job.moves, job.step, job.checkpoint_step, job.cost) == (3, 1, 1204, 1200, 1_020_000)
    other = Job.model_validate((await tenant.http.get(f"/v1/jobs/{waiting}")).json())
    assert (other.where, other.message) == (None, "needs a node")
    in_list = (await tenant.http.get("/v1/jobs")).json()["data"]
    assert [one["where"] and one["where"]["node_id"] for one in in_list] == [None, node_id]


async def test_a_paused_job_says_why(tenant: Tenant, context: ApiContext) -> None:
    """The reason of a pause is the job's reason."""
    job_id = await add_job(context, tenant, state=JobState.PAUSED, pause_reason=PauseReason.COST_CAP)
    assert (await tenant.http.get(f"/v1/jobs/{job_id}")).json()["reason"] == "cost_cap"


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.WAITING, JobState.PAUSED])
async def test_a_job_that_is_nowhere_is_cancelled_at_once(
    tenant: Tenant, context: ApiContext, clock: ManualClock, state: JobState
) -> None:
    """Its answer says so, with the reason and an end; cancelling again changes nothing."""
    job_id = await add_job(context, tenant, state=state)
    clock.advance(s=5)
    first = await tenant.http.post(f"/v1/jobs/{job_id}/cancel")
    job = Job.model_validate(first.json())
    assert (first.status_code, job.status, job.reason) == (200, "cancelled", JobEnd.CANCELLED)
    assert job.ended_at is not None
    assert int(job.ended_at.timestamp() * 1000) == clock.ms
    clock.advance(s=5)
    again = await tenant.http.post(f"/v1/jobs/{job_id}/cancel", headers={"Idempotency-Key": "x"})
    assert (again.status_code, again.json()) == (200, first.json())
    events = (await tenant.http.get(f"/v1/jobs/{job_id}/events")).json()["data"]
    assert [event["kind"] for event in events] == ["cancelled"]


@pytest.mark.parametrize("tier", [Tier.SERVERLESS, Tier.MARKETPLACE])
@pytest.mark.parametrize(
    ("state", "run_state"),
    [
        (JobState.STARTING, RunState.ASSIGNED),
        (JobState.RUNNING, RunState.RUNNING),
        (JobState.CHECKPOINTING, RunState.STOPPING),
    ],
)
async def test_a_job_that_runs_is_cancelled_with_its_run(
    tenant: Tenant, context: ApiContext, state: JobState, run_state: RunState, tier: Tier
) -> None:
    """The run is over and fenced, its agent is told, and a node that dies with its run is ended."""
    job_id = await add_job(context, tenant, state=state, epoch=1)
    run_id, node_id = await add_run(context, tenant, job_id, tier=tier, state=run_state)
    response = await tenant.http.post(f"/v1/jobs/{job_id}/cancel")
    assert (response.status_code, response.json()["status"], response.json()["epoch"]) == (200, "cancelled", 2)
    async with context.database.transaction() as connection:
        run = (await connection.execute(select(runs).where(runs.c.id == run_id))).one()
        node = (await connection.execute(select(nodes).where(nodes.c.id == node_id))).one()
        operations = (await connection.execute(select(provider_operations.c.kind))).scalars().all()
        epoch = (await connection.execute(select(run_jobs.c.epoch).where(run_jobs.c.run_id == run_id))).scalar_one()
    assert (run.state, run.end_reason, epoch) == (RunState.ENDED, RunEnd.CANCELLED, 1)
    assert node.desired_version > 1
    if tier is Tier.SERVERLESS:
        assert (node.state, operations) == (NodeState.TERMINATING, ["terminate"])
    else:
        assert (node.state, operations) == (NodeState.READY, [])


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED])
async def test_a_job_that_is_over_cannot_be_cancelled(tenant: Tenant, context: ApiContext, state: JobState) -> None:
    """409 with its state; it stays what it was."""
    job_id = await add_job(context, tenant, state=state)
    error = error_of(await tenant.http.post(f"/v1/jobs/{job_id}/cancel"), 409, "conflict")
    assert state in error["message"]
    assert (await tenant.http.get(f"/v1/jobs/{job_id}")).json()["status"] == state


async def test_concurrent_cancellations_cancel_once(tenant: Tenant, context: ApiContext) -> None:
    """Ten at once: all of them succeed, the run ends once, the epoch is raised once."""
    job_id = await add_job(context, tenant, state=JobState.RUNNING, epoch=1)
    await add_run(context, tenant, job_id, tier=Tier.SERVERLESS)
    answers = await asyncio.gather(*(tenant.http.post(f"/v1/jobs/{job_id}/cancel") for _ in range(10)))
    assert {(one.status_code, one.json()["epoch"]) for one in answers} == {(200, 2)}
    events = (await tenant.http.get(f"/v1/jobs/{job_id}/events")).json()["data"]
    assert sorted(event["kind"] for event in events) == ["cancelled", "run_cancelled"]


async def test_the_timeline_tells_each_stay_with_its_cost(
    tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """Ledger lines by run, the boot of a node with the first stay there, and the sum of all."""
    job_id = await add_job(context, tenant, state=JobState.RUNNING, epoch=3)
    first, sandbox = await add_run(
        context,
        tenant,
        job_id,
        tier=Tier.SERVERLESS,
        node_price_micros_per_hour=3_600_000,
        state=RunState.ENDED,
        end_reason=RunEnd.DEMOTED,
        running_ms=T0_MS + 10_000,
        ended_ms=T0_MS + 110_000,
    )
    async with context.database.transaction() as connection:
        await close_allocations(connection, first, now_ms=T0_MS + 110_000)
    second, rented = await add_run(context, tenant, job_id, epoch=3, running_ms=T0_MS + 200_000, resumed_from_step=88)
    await add_ledger_line(context, tenant, sandbox, job_id, first, "run", 110_000)
    await add_ledger_line(context, tenant, sandbox, job_id, first, "run", 5)
    await add_ledger_line(context, tenant, rented, job_id, None, "boot", 7_000)
    await add_ledger_line(context, tenant, rented, job_id, second, "run", 900)
    await add_ledger_line(context, tenant, rented, None, None, "idle", 1_000_000)
    clock.ms = T0_MS + 300_000
    told = Timeline.model_validate((await tenant.http.get(f"/v1/jobs/{job_id}/timeline")).json())
    assert [(stay.node_id, stay.cost) for stay in told.stays] == [(sandbox, 110_005), (rented, 7_900)]
    assert told.cost == 117_905
    assert [stay.end_reason for stay in told.stays] == ["demoted", None]
    assert told.stays[1].resumed_from_step == 88
    assert (told.running_ms, told.waiting_ms) == (200_000, 100_000)
    assert told.all_serverless == 210_000  # its boot of 10 s and 200 s, at 0.001 dollars a second


async def test_sizes_are_told_page_by_page(tenant: Tenant, context: ApiContext) -> None:
    """Oldest first, with what it cost an hour; a cursor that is none of ours is refused."""
    job_id = await add_job(context, tenant, state=JobState.RUNNING, epoch=1)
    node = {"node_gpu_count": 4, "node_price_micros_per_hour": 4_000_000}
    run_id, node_id = await add_run(context, tenant, job_id, gpu_indices=(0, 1, 2, 3), **node)
    async with context.database.transaction() as connection:
        await close_allocations(connection, run_id, now_ms=T0_MS + 50)
        three = {"run_id": run_id, "node_id": node_id, "gpu_indices": [0, 1, 2], "from_ms": T0_MS + 50}
        await connection.execute(allocations.insert().values(id=new_id("aloc"), **three))
        lent = {"run_id": run_id, "gpus": 3, "gpus_before": 4, "to_job_id": "job_x"}
        said = {"kind": "gpus_lent", "message": "lends 1 of 1 GPU that job_x waits for", "at_ms": T0_MS + 20}
        await connection.execute(job_events.insert().values(job_id=job_id, position=1, data=lent, **said))
    path, found, cursor = f"/v1/jobs/{job_id}/sizes", [], None
    for _ in range(2):
        body = (await tenant.http.get(path, params={"limit": 1} | ({"cursor": cursor} if cursor else {}))).json()
        found += [JobSize.model_validate(one) for one in body["data"]]
        cursor = body["next_cursor"]
    assert cursor is None
    assert [(one.gpus, one.gpus_before, one.price_per_hour, one.why, one.for_job_id) for one in found] == [
        (4, None, 4_000_000, "begun", None),
        (3, 4, 3_000_000, "lent", "job_x"),
    ]
    assert (found[0].to_at, found[1].to_at) == (found[1].from_at, None)
    assert {(one.step_s, one.noise) for one in found} == {(None, None)}
    async with context.database.transaction() as connection:
        app_id = (await connection.execute(select(jobs.c.app_id).where(jobs.c.id == job_id))).scalar_one()
        for shape, speed in (("", 4.0), ("another", 9.0)):
            of = {"app_id": app_id, "shape": shape, "gpu_type": "a100", "gpus": 3}
            kept = {"steps_per_s": speed, "noise": 0.02, "samples": 1, "updated_ms": T0_MS}
            await connection.execute(size_speeds.insert().values(of | kept))
    told = [JobSize.model_validate(one) for one in (await tenant.http.get(path)).json()["data"]]
    assert [(one.gpus, one.step_s, one.noise) for one in told] == [(4, None, None), (3, 0.25, 0.02)]
    for wrong in ("aloc_1", text_cursor("no"), text_cursor(f"-1 {new_id('aloc')}"), text_cursor("1 x")):
        error = error_of(await tenant.http.get(path, params={"cursor": wrong}), 422, "invalid_input")
        assert error["param"] == "cursor"


async def test_without_a_serverless_stay_todays_offer_is_the_comparison(
    tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """The cheapest serverless offer of the same GPUs; without any offer the job's own cost."""
    job_id = await add_job(context, tenant, state=JobState.RUNNING, epoch=1)
    run_id, node_id = await add_run(context, tenant, job_id, running_ms=T0_MS)
    await add_ledger_line(context, tenant, node_id, job_id, run_id, "run", 42)
    clock.ms = T0_MS + HOUR_MS
    path = f"/v1/jobs/{job_id}/timeline"
    assert (await tenant.http.get(path)).json()["all_serverless"] == 42
    async with context.database.transaction() as connection:
        for offer_id, gpu_type, price in (("a", "A100", 2_100_000), ("b", "A100", 2_500_000), ("c", "T4", 100_000)):
            await connection.execute(
                offers.insert().values(
                    provider="local",
                    offer_id=offer_id,
                    tier=Tier.SERVERLESS,
                    offer={"gpu_type": gpu_type, "gpu_count": 1},
                    price_micros_per_hour=price,
                    seen_ms=T0_MS,
                )
            )
    assert (await tenant.http.get(path)).json()["all_serverless"] == 2_100_000


async def test_a_job_that_never_ran_has_an_empty_timeline(
    tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """It has waited since it was submitted, and cost nothing."""
    job_id = await add_job(context, tenant)
    clock.ms = T0_MS + 1234
    told = (await tenant.http.get(f"/v1/jobs/{job_id}/timeline")).json()
    assert told == {"stays": [], "waiting_ms": 1234, "running_ms": 0, "cost": 0, "all_serverless": 0, "repeated_ms": 0}


async def test_a_job_that_never_left_serverless_saved_nothing(
    tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """The comparison is its own cost, to the micro-dollar."""
    job_id = await add_job(context, tenant, state=JobState.RUNNING, epoch=1)
    run_id, node_id = await add_run(context, tenant, job_id, tier=Tier.SERVERLESS, running_ms=T0_MS)
    await add_ledger_line(context, tenant, node_id, job_id, run_id, "run", 4321)
    clock.ms = T0_MS + HOUR_MS
    told = (await tenant.http.get(f"/v1/jobs/{job_id}/timeline")).json()
    assert (told["cost"], told["all_serverless"]) == (4321, 4321)
