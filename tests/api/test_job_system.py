"""What a job uses of its machines, over HTTP: apart from its metrics, and no more than a picture needs."""

from __future__ import annotations

from app.api.context import ApiContext
from app.db.runs.system import add_samples
from tests.api.builders import add_job, add_metric
from tests.api.conftest import Tenant, error_of
from tests.seeds import T0_MS

CPU, MEMORY = "system/cpu_percent", "system/gpu0/memory_bytes"


async def test_it_is_shown_by_time_and_apart_from_metrics(
    tenant: Tenant, stranger: Tenant, context: ApiContext
) -> None:
    """Neither the names of a job's metrics nor the table of jobs know of it. Other projects see none of it."""
    job_id = await add_job(context, tenant)
    await add_metric(context, job_id, 1, loss=1.5)
    samples = {T0_MS + 10_000 * number: {CPU: 10.0 * number, MEMORY: float(number)} for number in range(8)}
    async with context.database.transaction() as connection:
        await add_samples(connection, job_id, 1, samples)
    told = (await tenant.http.get(f"/v1/jobs/{job_id}/system")).json()["points"]
    assert [one["values"] for one in told] == list(samples.values())
    few = (await tenant.http.get(f"/v1/jobs/{job_id}/system", params={"max_points": 4})).json()["points"]
    assert [one["values"] for one in few] == [{CPU: 5.0 + 20 * at, MEMORY: 1.0 + 2 * at} for at in range(4)]
    metrics = (await tenant.http.get(f"/v1/jobs/{job_id}/metrics")).json()["data"]
    assert [one["values"] for one in metrics] == [{"loss": 1.5}]
    table = (await tenant.http.get("/v1/jobs/table")).json()
    assert "system/" not in str(table)
    error_of(await stranger.http.get(f"/v1/jobs/{job_id}/system"), 404, "not_found")


async def test_a_job_that_told_nothing_has_none(tenant: Tenant, context: ApiContext) -> None:
    job_id = await add_job(context, tenant)
    assert (await tenant.http.get(f"/v1/jobs/{job_id}/system")).json() == {"points": []}
