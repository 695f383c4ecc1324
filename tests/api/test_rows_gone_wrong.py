"""Lists of jobs with one row that nothing of ours would have written: the others are listed, found and followed."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import FastAPI

from app.api.context import ApiContext
from tests.api.builders import add_job, add_run
from tests.api.conftest import Tenant
from tests.api.test_job_table_stream import change, lines_of, position_of, watching
from tests.api.test_streams import PATIENCE_S

_LEAST, _MOST = -(2**63), 2**63 - 1
_POINT = "INSERT INTO metric_points (job_id, epoch, step, at_ms, values) VALUES"
ROWS = {
    "labels that are a list": "UPDATE jobs SET labels = '[]'",
    "labels that are a text": "UPDATE jobs SET labels = '\"x\"'",
    "labels that are null": "UPDATE jobs SET labels = 'null'",
    "a label that is a number": "UPDATE jobs SET labels = '{\"a\": 5}'",
    "a label that is an object": 'UPDATE jobs SET labels = \'{"a": {"b": 1}}\'',
    "a state of nobody": "UPDATE jobs SET state = 'sublimated'",
    "submitted before all time": f"UPDATE jobs SET submitted_ms = {_LEAST}",
    "submitted after all time": f"UPDATE jobs SET submitted_ms = {_MOST}",
    "due before all time": f"UPDATE jobs SET deadline_ms = {_LEAST}",
    "begun before all time": f"UPDATE jobs SET first_running_ms = {_LEAST}, ended_ms = 5",
    "steps below none": "UPDATE jobs SET step = -5, total_steps = -9",
    "steps beyond counting": f"UPDATE jobs SET total_steps = {_MOST}, state = 'running'",
    "a template that is a list": "UPDATE jobs SET template = '[]', state = 'running'",
    "a cost below nothing": f"UPDATE jobs SET spent_micros = {_LEAST}",
    "a loss that is a word": f'{_POINT} (:job, 1, 1, 5, \'{{"loss": "bad"}}\')',
    "a loss that is an object": f"{_POINT} (:job, 1, 1, 5, '{{\"loss\": {{}}}}')",
    "a loss beyond numbers": f"{_POINT} (:job, 1, 1, 5, '{{\"loss\": 1e999}}')",
    "metrics that are a list": f"{_POINT} (:job, 1, 1, 5, '[]')",
    "points far apart": f"{_POINT} (:job, 1, {_LEAST}, 5, '{{}}'), (:job, 1, {_MOST}, 5, '{{}}')",
    "a tier of nobody": "UPDATE nodes SET tier = 'lunar'",
    "a price beyond money": f"UPDATE nodes SET price_micros_per_hour = {_MOST}",
    "a bill by nothing": "UPDATE nodes SET billing_unit_ms = 0",
    "a run of nobody's state": "UPDATE runs SET state = 'sublimated'",
    "a run begun before all time": f"UPDATE runs SET created_ms = {_LEAST}",
}


@pytest.mark.parametrize("statement", ROWS.values(), ids=ROWS)
async def test_one_row_hides_no_other(api: FastAPI, tenant: Tenant, context: ApiContext, statement: str) -> None:
    """In the list, in the table, in what is searched for, and in the stream. The job itself is listed, too."""
    bad, good = await add_job(context, tenant, first_running_ms=5), await add_job(context, tenant)
    await add_run(context, tenant, bad)
    position = await position_of(tenant)
    only = f"{statement} WHERE id = :job" if statement.startswith("UPDATE jobs") else statement
    async with context.database.transaction() as connection:
        await connection.exec_driver_sql(only.replace(":job", f"'{bad}'"))
    for path in ("/v1/jobs", "/v1/jobs/table", "/v1/jobs/table?q=job_"):
        answer = await tenant.http.get(path)
        assert answer.status_code == 200, answer.text
        assert {job["id"] for job in answer.json()["data"]} == {bad, good}, path
    assert (await tenant.http.get("/v1/jobs/table?q=of+no+job")).json()["data"] == []
    async with watching(api, tenant, f"?after={position}") as client:
        await change(context, good, step=7)
        async with asyncio.timeout(PATIENCE_S):
            while lines_of(client).get(good, {}).get("step") != 7:
                await asyncio.sleep(0.01)
