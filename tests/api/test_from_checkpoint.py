"""Jobs that begin with a checkpoint of another job."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from app.api.context import ApiContext
from app.core.model.checkpoint import CheckpointState
from app.core.model.job import JobState
from app.db.checkpoints.retention import prune, saved_of
from app.db.tables import checkpoints, jobs
from tests.api.builders import add_checkpoint, add_ended_run, add_job
from tests.api.conftest import Tenant, error_of
from tests.conftest import ManualClock


class Source:
    """A job that is over, with checkpoints of the steps 10 and 20."""

    def __init__(self, job_id: str, checkpoint_ids: list[str]) -> None:
        self.job_id = job_id
        self.checkpoint_ids = checkpoint_ids


@pytest.fixture
async def source(tenant: Tenant, context: ApiContext) -> Source:
    job_id = await add_job(context, tenant, state=JobState.SUCCEEDED)
    run_id = await add_ended_run(context, tenant, job_id)
    ids = [await add_checkpoint(context, tenant, job_id, run_id, step, paths=("model",)) for step in (10, 20)]
    await add_checkpoint(context, tenant, job_id, run_id, 30, state=CheckpointState.PRUNED)
    return Source(job_id, ids)


async def submit(tenant: Tenant, name: str, **more: Any) -> Any:
    return await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id, "from_checkpoint": name, **more})


async def test_a_job_begins_with_the_named_step_or_the_newest(tenant: Tenant, source: Source) -> None:
    """It says with which; a sweep's jobs all do."""
    first = await submit(tenant, f"{source.job_id}:10")
    assert (first.status_code, first.json()["from_checkpoint_id"]) == (201, source.checkpoint_ids[0])
    newest = await submit(tenant, source.job_id)
    assert newest.json()["from_checkpoint_id"] == source.checkpoint_ids[1]
    read = await tenant.http.get(f"/v1/jobs/{first.json()['id']}")
    assert read.json() == first.json()
    body = {"app_id": tenant.app_id, "from_checkpoint": f"{source.job_id}:20", "parameters": [{"lr": 1}, {"lr": 2}]}
    sweep = (await tenant.http.post("/v1/sweeps", json=body)).json()
    assert [one["from_checkpoint_id"] for one in sweep["jobs"]] == [source.checkpoint_ids[1]] * 2


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("{job}:30", 404, "has no checkpoint of step 30; it has those of 10, 20"),
        ("{other}:10", 404, "has no complete checkpoint"),
        ("job_00000000000000000000:10", 404, "there is no job"),
        ("{job}:ten", 422, "is not JOB:STEP"),
        ("10", 422, "is not JOB:STEP"),
    ],
)
async def test_what_is_not_there_is_refused_in_words(
    tenant: Tenant, context: ApiContext, source: Source, name: str, status: int, words: str
) -> None:
    """With the field, and what there is instead; nothing is submitted."""
    other = await add_job(context, tenant)
    answer = await submit(tenant, name.format(job=source.job_id, other=other))
    error = error_of(answer, status, "not_found" if status == 404 else "invalid_input")
    assert error["param"] == "from_checkpoint"
    assert words in error["message"]
    async with context.database.transaction() as connection:
        named = select(jobs.c.id).where(jobs.c.from_checkpoint_id.is_not(None))
        assert (await connection.execute(named)).all() == []


async def test_another_projects_checkpoint_does_not_exist(tenant: Tenant, stranger: Tenant, source: Source) -> None:
    """Not even as "forbidden"."""
    answer = await submit(stranger, f"{source.job_id}:10")
    assert "there is no job" in error_of(answer, 404, "not_found")["message"]


async def test_what_a_job_begins_with_stays_until_that_job_is_over(
    tenant: Tenant, context: ApiContext, source: Source, clock: ManualClock
) -> None:
    """Whatever the retention of the job that it came from; and from the moment of being named."""
    submitted = (await submit(tenant, f"{source.job_id}:10")).json()
    named = source.checkpoint_ids[0]

    async def wanted() -> set[str]:
        async with context.database.transaction() as connection:
            saved = await saved_of(connection, source.job_id, now_ms=clock.now_ms())
        return {one.checkpoint_id for one in saved if one.is_wanted}

    assert await wanted() == {named}
    async with context.database.transaction() as connection:
        assert await prune(connection, [named], now_ms=clock.now_ms()) == 0
    clock.advance(s=7200)
    assert await wanted() == {named}, "the job has not begun"
    async with context.database.transaction() as connection:
        await connection.execute(update(jobs).where(jobs.c.id == submitted["id"]).values(state=JobState.SUCCEEDED))
    assert await wanted() == set()
    async with context.database.transaction() as connection:
        assert await prune(connection, [named], now_ms=clock.now_ms()) == 1
        states = select(checkpoints.c.state).where(checkpoints.c.id == named)
        assert (await connection.execute(states)).scalar_one() == CheckpointState.PRUNED


async def test_the_same_key_gives_the_first_answer_though_the_checkpoint_is_gone(
    tenant: Tenant, context: ApiContext, source: Source
) -> None:
    """A repeated request is answered as it was, whatever became of what it named."""
    body = {"app_id": tenant.app_id, "from_checkpoint": f"{source.job_id}:10"}
    headers = {"Idempotency-Key": "once"}
    first = await tenant.http.post("/v1/jobs", json=body, headers=headers)
    async with context.database.transaction() as connection:
        await connection.execute(update(checkpoints).values(state=CheckpointState.PRUNED))
    again = await tenant.http.post("/v1/jobs", json=body, headers=headers)
    assert (again.status_code, again.json()) == (201, first.json())
