"""Pausing, resuming, changing and explaining jobs over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select

from allpass.wire.controls import Explanation
from allpass.wire.jobs import Job
from app.api.context import ApiContext
from app.core.model.job import Caps, JobState, PauseReason
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.run import RunState
from app.core.policy import PolicyState
from app.db.decisions.snapshots import read_snapshot
from app.db.decisions.ticks import TickRow, add_tick
from app.db.offers.listed import replace_offers
from app.db.tables import jobs, metric_points, runs
from tests.api.builders import add_job, add_run
from tests.api.conftest import Tenant, error_of
from tests.conftest import ManualClock
from tests.seeds import GIB, T0_MS, new_id

HOUR_MS = 3_600_000
LIVE = [state for state in JobState if state not in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)]
OVER = [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED]
OFFER = Offer("local", "fn", Tier.SERVERLESS, "A100", 1, 40 * GIB, 8, 64 * GIB, Money.usd("2.10"), 3_000)


async def row_of(context: ApiContext, job_id: str) -> Any:
    async with context.database.transaction() as connection:
        return (await connection.execute(select(jobs).where(jobs.c.id == job_id))).one()


async def kinds(tenant: Tenant, job_id: str) -> list[str]:
    return [one["kind"] for one in (await tenant.http.get(f"/v1/jobs/{job_id}/events")).json()["data"]]


async def offered(context: ApiContext) -> None:
    async with context.database.transaction() as connection:
        await replace_offers(connection, "local", [OFFER], now_ms=context.clock.now_ms())


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.WAITING])
async def test_a_job_that_waits_is_paused_and_resumed(tenant: Tenant, context: ApiContext, state: JobState) -> None:
    """At once, to where it was; both are idempotent, and each happens once however often it is asked."""
    ran = {"first_running_ms": T0_MS} if state is JobState.WAITING else {}
    job_id = await add_job(context, tenant, state=state, **ran)
    answers = await asyncio.gather(*(tenant.http.post(f"/v1/jobs/{job_id}/pause") for _ in range(5)))
    assert {one.status_code for one in answers} == {200}
    job = Job.model_validate(answers[0].json())
    assert (job.status, job.reason) == ("paused", "user")
    assert "goes on when it is resumed" in (job.message or "")
    answers = await asyncio.gather(*(tenant.http.post(f"/v1/jobs/{job_id}/resume") for _ in range(5)))
    assert {(one.status_code, one.json()["status"], one.json()["reason"]) for one in answers} == {(200, state, None)}
    assert await kinds(tenant, job_id) == ["paused", "resumed"]


@pytest.mark.parametrize("tier", [Tier.SERVERLESS, Tier.MARKETPLACE])
async def test_a_running_job_is_asked_to_save(tenant: Tenant, context: ApiContext, tier: Tier) -> None:
    """It is checkpointing until it has left, and the answer says why; its agent is told once."""
    job_id = await add_job(context, tenant, state=JobState.RUNNING, epoch=1, first_running_ms=T0_MS)
    run_id, _ = await add_run(context, tenant, job_id, tier=tier)
    for _ in range(2):
        answer = await tenant.http.post(f"/v1/jobs/{job_id}/pause", headers={"Idempotency-Key": "x"})
        assert (answer.status_code, answer.json()["status"], answer.json()["reason"]) == (200, "checkpointing", "user")
    async with context.database.transaction() as connection:
        run = (await connection.execute(select(runs).where(runs.c.id == run_id))).one()
    assert (run.state, run.stop_mode) == (RunState.STOPPING, "checkpoint")
    assert await kinds(tenant, job_id) == ["run_stopping", "checkpointing"]


async def test_a_job_is_given_another_number_of_gpus(tenant: Tenant, context: ApiContext) -> None:
    """At once where it waits; in the middle of a step only where its training can, and where there is room."""
    waits = await add_job(context, tenant)
    answer = await tenant.http.post(f"/v1/jobs/{waits}/resize", json={"gpus": 2})
    assert (answer.status_code, (await row_of(context, waits)).resources["gpus_min"]) == (200, 2)
    trains = await add_job(context, tenant, state=JobState.RUNNING, epoch=1, first_running_ms=T0_MS)
    run_id, _ = await add_run(context, tenant, trains, node_gpu_count=2, gpu_indices=(0, 1))
    error = error_of(await tenant.http.post(f"/v1/jobs/{trains}/resize", json={"gpus": 2}), 409, "not_elastic")
    assert "has not said that it can" in error["message"]
    async with context.database.transaction() as connection:
        told = {"used": [0], "leaving": [], "refused": []}
        await connection.execute(runs.update().where(runs.c.id == run_id).values(gpus_told=told))
    error = error_of(await tenant.http.post(f"/v1/jobs/{trains}/resize", json={"gpus": 3}), 409, "no_room")
    assert (error["param"], "It can have 2" in error["message"]) == ("gpus", True)
    assert (await tenant.http.post(f"/v1/jobs/{trains}/resize", json={"gpus": 2})).status_code == 200
    assert await kinds(tenant, trains) == ["resize_asked"]


async def test_a_job_is_given_another_number_of_machines(tenant: Tenant, context: ApiContext) -> None:
    """At once where it waits, the same once under a key; while it runs only where it goes on exactly."""
    waits = await add_job(context, tenant)
    for _ in range(2):
        answer = await tenant.http.post(
            f"/v1/jobs/{waits}/resize", json={"nodes": 3}, headers={"Idempotency-Key": "machines"}
        )
        assert (answer.status_code, (await row_of(context, waits)).resources["nodes"]) == (200, 3)
    assert await kinds(tenant, waits) == ["resize_asked"]
    assert (await tenant.http.post(f"/v1/jobs/{waits}/resize", json={"nodes": 1})).status_code == 200
    assert "nodes" not in (await row_of(context, waits)).resources
    trains = await add_job(context, tenant, state=JobState.RUNNING, epoch=1, first_running_ms=T0_MS)
    await add_run(context, tenant, trains)
    error = error_of(await tenant.http.post(f"/v1/jobs/{trains}/resize", json={"nodes": 2}), 409, "not_elastic")
    assert "pause the job, resize it and resume it" in error["message"]
    unknown = new_id("job")
    error_of(await tenant.http.post(f"/v1/jobs/{unknown}/resize", json={"nodes": 2}), 404, "not_found")


async def test_what_does_not_fit_on_so_many_machines_is_refused_as_a_new_job_is(
    tenant: Tenant, context: ApiContext
) -> None:
    """A full fine-tuning that its own code spreads over two of them."""
    await offered(context)
    training = {"method": "full", "batch_size": 8, "sequence_length": 512}
    template = {"nodes": 8, "gpu": {"count": 8}, "model": {"name": "llama-3.1-70b"}, "training": training}
    asks = {"gpus_min": 8, "gpus_max": 8, "nodes": 8}
    job_id = await add_job(context, tenant, template=template, resources=asks)
    error = error_of(await tenant.http.post(f"/v1/jobs/{job_id}/resize", json={"nodes": 1}), 422, "invalid_input")
    assert error["param"] == "nodes" and "GB on each of its GPUs" in error["message"]
    assert (await row_of(context, job_id)).resources == asks


@pytest.mark.parametrize("body", [{}, {"gpus": 2, "nodes": 2}, {"nodes": 0}, {"nodes": 65}, {"nodes": None}])
async def test_either_gpus_or_machines_are_changed(tenant: Tenant, context: ApiContext, body: dict[str, Any]) -> None:
    job_id = await add_job(context, tenant)
    error = error_of(await tenant.http.post(f"/v1/jobs/{job_id}/resize", json=body), 422, "invalid_input")
    assert error["param"] == ("nodes" if body.get("nodes") in (0, 65) else "gpus")


async def test_a_job_whose_base_is_split_is_not_given_fewer_gpus(tenant: Tenant, context: ApiContext) -> None:
    """Each would have to hold more than it was let in with, and run out of memory wherever it begins. More may be."""
    template = {"training": {"sharded": True}, "gpu": {"count": 4}}
    asks = {"gpus_min": 4, "gpus_max": 4}
    for state in ({}, {"state": JobState.RUNNING, "epoch": 1, "first_running_ms": T0_MS}):
        job_id = await add_job(context, tenant, template=template, resources=asks, **state)
        answer = await tenant.http.post(f"/v1/jobs/{job_id}/resize", json={"gpus": 2})
        error = error_of(answer, 409, "not_elastic")
        assert (error["param"], "split over 4 GPUs" in error["message"]) == ("gpus", True)
    waits = await add_job(context, tenant, template=template, resources=asks)
    assert (await tenant.http.post(f"/v1/jobs/{waits}/resize", json={"gpus": 8})).status_code == 200
    assert (await tenant.http.post(f"/v1/jobs/{waits}/resize", json={"gpus": 4})).status_code == 200


@pytest.mark.parametrize("gpus", [0, 65, -1, 1.5, "two", None, True])
async def test_a_number_that_is_none_is_refused(tenant: Tenant, context: ApiContext, gpus: Any) -> None:
    job_id = await add_job(context, tenant)
    answer = await tenant.http.post(f"/v1/jobs/{job_id}/resize", json={"gpus": gpus})
    assert error_of(answer, 422, "invalid_input")["param"] == "gpus"


async def test_more_than_any_machine_has_is_refused(tenant: Tenant, context: ApiContext) -> None:
    """A job that waits would wait for ever."""
    await offered(context)
    job_id = await add_job(context, tenant)
    error = error_of(await tenant.http.post(f"/v1/jobs/{job_id}/resize", json={"gpus": 9}), 422, "invalid_input")
    assert (error["param"], "the most is 8" in error["message"]) == ("gpus", True)


@pytest.mark.parametrize("state", OVER)
async def test_what_is_over_cannot_be_steered(tenant: Tenant, context: ApiContext, state: JobState) -> None:
    """409 with its state, whatever is asked; it can still be explained."""
    job_id = await add_job(context, tenant, state=state, ended_ms=T0_MS + 60_000, end_message="because")
    for answer in (
        await tenant.http.post(f"/v1/jobs/{job_id}/pause"),
        await tenant.http.post(f"/v1/jobs/{job_id}/resume"),
        await tenant.http.patch(f"/v1/jobs/{job_id}", json={"labels": {"a": "b"}}),
    ):
        assert state in error_of(answer, 409, "conflict")["message"]
    told = (await tenant.http.get(f"/v1/jobs/{job_id}/explain")).json()
    assert told["headline"] == f"{state} 60 s after it was submitted"
    assert [one["text"] for one in told["because"]] == ["because"]
    assert told["next"] == []


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.WAITING])
async def test_resuming_a_job_that_goes_on_anyway_changes_nothing(
    tenant: Tenant, context: ApiContext, state: JobState
) -> None:
    """200 with the job as it is."""
    job_id = await add_job(context, tenant, state=state)
    answer = await tenant.http.post(f"/v1/jobs/{job_id}/resume")
    assert (answer.status_code, answer.json()["status"]) == (200, state)
    assert (await row_of(context, job_id)).row_version == 1


async def test_a_capped_job_is_resumed_only_with_a_higher_cap(tenant: Tenant, context: ApiContext) -> None:
    """409 with what it spent, its limit and the field to change; then it goes on."""
    columns = {"spent_micros": 1_500_000, "max_cost_micros": 1_000_000, "first_running_ms": T0_MS}
    job_id = await add_job(context, tenant, state=JobState.PAUSED, pause_reason=PauseReason.COST_CAP, **columns)
    error = error_of(await tenant.http.post(f"/v1/jobs/{job_id}/resume"), 409, "conflict")
    assert error["param"] == "max_cost_usd"
    assert "has cost $1.50 of at most $1.00: raise max_cost_usd above $1.50" in error["message"]
    changed = await tenant.http.patch(f"/v1/jobs/{job_id}", json={"max_cost_usd": 2})
    assert (changed.json()["status"], changed.json()["max_cost"]) == ("paused", 2_000_000)
    assert (await tenant.http.post(f"/v1/jobs/{job_id}/resume")).json()["status"] == "waiting"


@pytest.mark.parametrize("state", LIVE)
async def test_every_change_is_told_with_old_and_new(
    tenant: Tenant, context: ApiContext, clock: ManualClock, state: JobState
) -> None:
    """In any state that is not over; what is left out stays, null takes away, labels are merged."""
    job_id = await add_job(
        context,
        tenant,
        state=state,
        max_duration_ms=60_000,
        labels={"team": "a", "old": "x"},
        deadline_ms=T0_MS + HOUR_MS,
    )
    body = {
        "soft_deadline": "2h",
        "max_cost_usd": 12.5,
        "max_duration_s": None,
        "labels": {"old": None, "team": "b", "new": "1"},
    }
    answer = await tenant.http.patch(f"/v1/jobs/{job_id}", json=body)
    job = Job.model_validate(answer.json())
    assert (job.max_cost, job.max_duration_s, job.labels) == (12_500_000, None, {"team": "b", "new": "1"})
    assert (job.status, int(job.soft_deadline.timestamp() * 1000)) == (state, clock.ms + 2 * HOUR_MS)
    events = (await tenant.http.get(f"/v1/jobs/{job_id}/events")).json()["data"]
    assert {one["kind"] for one in events} == {"job_changed"}
    assert [(one["data"]["field"], one["data"]["old"], one["data"]["new"]) for one in events] == [
        ("soft_deadline", T0_MS + HOUR_MS, T0_MS + 2 * HOUR_MS),
        ("max_cost", None, 12_500_000),
        ("max_duration", 60_000, None),
        ("labels", {"team": "a", "old": "x"}, {"team": "b", "new": "1"}),
    ]
    assert events[1]["message"] == "its owner changed max_cost from no limit to $12.50"
    assert events[2]["message"] == "its owner changed max_duration from 60 s to no limit"
    row = await row_of(context, job_id)
    assert (row.row_version, row.deadline_given) == (2, True)
    again = await tenant.http.patch(f"/v1/jobs/{job_id}", json=body)
    assert again.json()["labels"] == job.labels
    assert (await row_of(context, job_id)).row_version == 2
    assert len(await kinds(tenant, job_id)) == 4


async def test_the_limit_per_hour_is_set_and_taken_away(
    tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """Given with the template or later; decisions see it; a limit of nothing is refused, naming the field."""
    template = {"caps": {"max_hourly_usd": 2.5}}
    submitted = await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id, "template": template})
    assert submitted.json()["max_hourly"] == 2_500_000
    path = f"/v1/jobs/{submitted.json()['id']}"
    changed = await tenant.http.patch(path, json={"max_hourly_usd": 1.25})
    assert changed.json()["max_hourly"] == 1_250_000
    async with context.database.transaction() as connection:
        (seen,) = (await read_snapshot(connection, clock.now_ms(), (), 60_000)).jobs
    assert seen.caps == Caps(max_hourly=Money.usd("1.25"))
    events = (await tenant.http.get(f"{path}/events")).json()["data"]
    assert events[-1]["message"] == "its owner changed max_hourly from $2.50/h to $1.25/h"
    assert (await tenant.http.patch(path, json={"max_hourly_usd": None})).json()["max_hourly"] is None
    for wrong in (0, -1, "many"):
        error = error_of(await tenant.http.patch(path, json={"max_hourly_usd": wrong}), 422, "invalid_input")
        assert error["param"] == "max_hourly_usd"


async def test_how_long_it_waits_and_how_often_it_is_begun_again(
    tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """Given with the template or later, told, seen by decisions, and taken away; nonsense names the field."""
    template = {"caps": {"max_wait_s": 7200}, "retries": 3}
    submitted = await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id, "template": template})
    assert [submitted.json()[name] for name in ("max_wait_s", "retries", "retried")] == [7200, 3, 0]
    path = f"/v1/jobs/{submitted.json()['id']}"
    changed = await tenant.http.patch(path, json={"max_wait_s": 60, "retries": 0})
    assert [changed.json()[name] for name in ("max_wait_s", "retries", "retried")] == [60, 0, 0]
    async with context.database.transaction() as connection:
        (seen,) = (await read_snapshot(connection, clock.now_ms(), (), 60_000)).jobs
    assert seen.caps == Caps(max_wait_ms=60_000)
    events = [event["message"] for event in (await tenant.http.get(f"{path}/events")).json()["data"]]
    assert events[-2:] == [
        "its owner changed max_wait from 2 h 0 min to 60 s",
        "its owner changed retries from 3 to 0",
    ]
    cleared = await tenant.http.patch(path, json={"max_wait_s": None, "retries": None})
    assert [cleared.json()[name] for name in ("max_wait_s", "retries")] == [None, None]
    for name, wrong in (("max_wait_s", 0), ("max_wait_s", "2h"), ("retries", -1), ("retries", 101), ("retries", True)):
        error = error_of(await tenant.http.patch(path, json={name: wrong}), 422, "invalid_input")
        assert error["param"] == name


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"soft_deadline": None}, "soft_deadline", "a job always has one"),
        ({"soft_deadline": "soon"}, "soft_deadline", "is not a deadline"),
        ({"soft_deadline": "2020-01-01T00:00:00Z"}, "soft_deadline", "not in the future"),
        ({"max_cost_usd": 0}, "max_cost_usd", "greater than 0"),
        ({"max_cost_usd": 0.0000001}, "max_cost_usd", "micro-dollar is the smallest"),
        ({"max_cost_usd": 0.01}, "max_cost_usd", "allow at least $0.035"),
        ({"max_duration_s": 10**12}, "max_duration_s", "less than or equal to 315360000"),
        ({"labels": {f"l{index}": "" for index in range(64)}}, "labels", "at most 64"),
        ({"priority": 1}, "priority", "there is no such field"),
    ],
)
async def test_a_change_that_makes_no_sense_is_refused(
    tenant: Tenant, context: ApiContext, body: dict[str, Any], param: str, says: str
) -> None:
    """422 naming the field and what would be accepted; nothing is changed."""
    await offered(context)
    job_id = await add_job(context, tenant, labels={"team": "a"})
    error = error_of(await tenant.http.patch(f"/v1/jobs/{job_id}", json=body), 422, "invalid_input")
    assert error["param"] == param
    assert says in error["message"]
    assert (await row_of(context, job_id)).row_version == 1


async def test_a_cap_below_a_minute_of_anything_is_refused_at_submission(tenant: Tenant, context: ApiContext) -> None:
    """With the offer and its price; where nothing is offered, and at exactly a minute, it is let through."""

    async def submit(usd: float) -> Any:
        body = {"app_id": tenant.app_id, "template": {"caps": {"max_cost_usd": usd}}}
        return await tenant.http.post("/v1/jobs", json=body)

    assert (await submit(0.01)).status_code == 201
    await offered(context)
    context.clock.advance(s=6)  # type: ignore[attr-defined]  # the clock of tests
    error = error_of(await submit(0.01), 422, "invalid_input")
    assert error["param"] == "template.caps.max_cost_usd"
    assert "cheapest offer known, local/fn (A100 at $2.10/h, $0.035 a minute)" in error["message"]
    accepted = await submit(0.035)
    assert (accepted.status_code, accepted.json()["max_cost"]) == (201, 35_000)
    sweep = {"app_id": tenant.app_id, "parameters": [{}], "template": {"caps": {"max_cost_usd": 0.01}}}
    error_of(await tenant.http.post("/v1/sweeps", json=sweep), 422, "invalid_input")


async def test_other_projects_and_unknown_jobs_are_not_there(
    tenant: Tenant, stranger: Tenant, context: ApiContext
) -> None:
    """404 for all four, and nothing happened."""
    job_id = await add_job(context, tenant)
    for http, one in ((stranger.http, job_id), (tenant.http, new_id("job")), (tenant.http, "job_1")):
        error_of(await http.post(f"/v1/jobs/{one}/pause"), 404, "not_found")
        error_of(await http.post(f"/v1/jobs/{one}/resume"), 404, "not_found")
        error_of(await http.patch(f"/v1/jobs/{one}", json={"max_cost_usd": 1}), 404, "not_found")
        error_of(await http.get(f"/v1/jobs/{one}/explain"), 404, "not_found")
    assert (await row_of(context, job_id)).row_version == 1


async def add_points(
    context: ApiContext,
    job_id: str,
    epoch: int,
    first: int,
    count: int,
    step_ms: int,
    values: Callable[[int], dict[str, float]] = lambda step: {"loss": 1},
) -> None:
    async with context.database.transaction() as connection:
        await connection.execute(
            metric_points.insert(),
            [
                {
                    "job_id": job_id,
                    "step": first + n,
                    "epoch": epoch,
                    "at_ms": T0_MS + n * step_ms,
                    "values": values(first + n),
                }
                for n in range(count)
            ],
        )


async def test_a_running_job_says_when_it_will_be_done(tenant: Tenant, context: ApiContext, clock: ManualClock) -> None:
    """Steps left times the measured step of the present run: other runs, and jobs that wait, do not count."""
    columns = {"state": JobState.RUNNING, "epoch": 3, "step": 200, "total_steps": 500}
    job_id = await add_job(context, tenant, **columns)
    new = await add_job(context, tenant, **columns)
    waiting = await add_job(context, tenant, **columns | {"state": JobState.WAITING})
    for one in (job_id, waiting):
        await add_points(context, one, 1, 1, 100, 1)
        await add_points(context, one, 3, 101, 100, 2_000)
    await add_points(context, new, 1, 1, 100, 1)
    listed = {one["id"]: one["estimated_finish_at"] for one in (await tenant.http.get("/v1/jobs")).json()["data"]}
    assert listed[new] is None
    assert listed[waiting] is None
    job = Job.model_validate((await tenant.http.get(f"/v1/jobs/{job_id}")).json())
    assert job.estimated_finish_at is not None
    assert int(job.estimated_finish_at.timestamp() * 1000) == clock.ms + 300 * 2_000
    assert Job.model_validate({**job.model_dump(), "estimated_finish_at": listed[job_id]}) == job
    told = Explanation.model_validate((await tenant.http.get(f"/v1/jobs/{job_id}/explain")).json())
    assert told.next[0].text == "is done in about 10 min: 300 steps left at its present speed"
    assert job.expected is not None
    assert (job.expected.least, job.expected.likely, job.expected.most, job.expected.by) == (300, 300, 300, "steps")
    assert job.expected.earliest_at == job.expected.latest_at == job.estimated_finish_at
    assert told.deadline.slack_ms == 6 * HOUR_MS - 600_000
    assert told.deadline.text.endswith("at its present speed it is done 5 h 50 min before it")
    unknown = Explanation.model_validate((await tenant.http.get(f"/v1/jobs/{new}/explain")).json())
    assert unknown.deadline.estimated_finish_at is None
    assert "its present run has not measured two steps yet" in unknown.deadline.text


async def test_losses_tell_when_a_job_will_be_done(tenant: Tenant, context: ApiContext, clock: ManualClock) -> None:
    """A job that was not given a number of steps, where its loss is flat; and one with a target, where its curve gets
    there. Metrics that are there at some steps only count too."""

    def losses(step: int) -> dict[str, float]:
        loss = 1 + 1 / (0.5 + 0.01 * step)
        return {"loss": loss} if step % 10 else {"loss": loss, "eval_loss": loss}

    columns = {"state": JobState.RUNNING, "epoch": 1, "step": 200}
    free = await add_job(context, tenant, **columns)
    target = {"name": "eval_loss", "value": 1.36, "goal": "min"}
    aimed = await add_job(context, tenant, **columns, total_steps=900, template={"target": target})
    for one in (free, aimed):
        await add_points(context, one, 1, 1, 200, 1_000, losses)
    for job_id, by, until in ((free, "its loss is flat", 266), (aimed, "its metric reaches the target", 228)):
        told = Explanation.model_validate((await tenant.http.get(f"/v1/jobs/{job_id}/explain")).json())
        assert by in told.next[0].text
        seen = Job.model_validate((await tenant.http.get(f"/v1/jobs/{job_id}")).json())
        assert seen.estimated_finish_at is not None
        left_s = seen.estimated_finish_at.timestamp() - clock.ms / 1000
        assert left_s == pytest.approx(until - 200, abs=5)
        expected = seen.expected
        assert expected is not None
        assert expected.least < expected.likely < expected.most
        assert (expected.by, expected.likely) == ("target" if job_id == aimed else "loss", pytest.approx(left_s, abs=1))
        assert expected.earliest_at < seen.estimated_finish_at < expected.latest_at
        assert f"({expected.least} to {expected.most})" in told.next[0].text
    listed = {one["id"]: one["expected"] for one in (await tenant.http.get("/v1/jobs")).json()["data"]}
    assert listed[free] is None
    assert (listed[aimed]["least"], listed[aimed]["most"]) == (0, 700)  # nobody looks at its losses for a list


async def test_an_explanation_says_nothing_of_other_projects(
    tenant: Tenant, stranger: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """Only jobs of the own project with an earlier deadline are counted; of a decision only its moment and budget."""
    job_id = await add_job(context, tenant, wait_reason="waits for a node", deadline_ms=T0_MS + 5)
    for owner in (tenant, stranger, stranger):
        await add_job(context, owner, deadline_ms=T0_MS + 1)
    await add_job(context, tenant, deadline_ms=T0_MS + 9)
    secret = {"signals": [["F_s", 300.0]], "waiting": [{"job_id": "job_x", "reason": "secret"}]}
    async with context.database.transaction() as connection:
        tick = TickRow(T0_MS, 1, "test", "fixed-threshold", PolicyState(), secret, 0, 1)
        await add_tick(connection, tick)
    clock.ms = T0_MS + 30_000
    answer = await tenant.http.get(f"/v1/jobs/{job_id}/explain")
    told = Explanation.model_validate(answer.json())
    assert [one.text for one in told.because] == [
        "waits for a node",
        "1 job of the project with an earlier deadline waits too, and comes first",
    ]
    assert "the newest on record was 30 s ago" in told.next[-1].text
    assert "secret" not in answer.text
    assert told.history == f"/v1/jobs/{job_id}/events"


async def test_a_job_of_which_nothing_is_on_record_is_not_explained_away(tenant: Tenant, context: ApiContext) -> None:
    """It says that it does not know."""
    job_id = await add_job(context, tenant, state=JobState.RUNNING)
    told = (await tenant.http.get(f"/v1/jobs/{job_id}/explain")).json()
    assert told["headline"] == "running"
    assert told["because"] == [{"text": "no reason for this is on record", "data": {}}]
    assert "says how many steps it has" in told["deadline"]["text"]
