"""Lending a job's GPUs over HTTP: what is answered, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from app.api.context import ApiContext
from tests.api.builders import add_job, add_lender
from tests.api.conftest import Tenant, error_of
from tests.conftest import ManualClock

HOUR = {"until": "1h"}


async def test_a_job_stands_by_and_is_called_back(tenant: Tenant, context: ApiContext, clock: ManualClock) -> None:
    """Its window may be written as a time from now or as an instant; each answer is the standby as it is now."""
    job_id = await add_lender(context, tenant)
    answer = await tenant.http.post(f"/v1/jobs/{job_id}/standby", json=HOUR)
    told = answer.json()
    assert (answer.status_code, told["state"], told["gpus"], told["used_gpus"]) == (200, "leaving", 2, 0)
    assert (told["rebate_share"], told["price_per_hour"]) == (0.5, 370_000)
    job = (await tenant.http.get(f"/v1/jobs/{job_id}")).json()
    assert job["status"] == "checkpointing"
    longer = (await tenant.http.post(f"/v1/jobs/{job_id}/standby", json={"until": "2h"})).json()
    assert (longer["id"], longer["until"] > told["until"]) == (told["id"], True)
    clock.advance(s=1)
    ended = await tenant.http.post(f"/v1/jobs/{job_id}/standby/end")
    assert (ended.status_code, ended.json()["why"]) == (200, "its owner calls it back")
    assert ended.json()["called_at"] is not None
    listed = (await tenant.http.get(f"/v1/jobs/{job_id}/standbys")).json()
    assert [one["id"] for one in listed["items"]] == [told["id"]]
    kinds = [one["kind"] for one in (await tenant.http.get(f"/v1/jobs/{job_id}/events")).json()["data"]]
    assert [kind for kind in kinds if kind in ("stands_by", "called_back")] == ["stands_by", "stands_by", "called_back"]


@pytest.mark.parametrize("until", ["soon", "", "2h30", "30 s", "8d", "2020-01-01T00:00Z", "2026-11-28T08:00"])
async def test_a_window_that_is_none_is_refused(tenant: Tenant, context: ApiContext, until: str) -> None:
    """Also one without a zone: whose clock would that be?"""
    job_id = await add_lender(context, tenant)
    error = error_of(await tenant.http.post(f"/v1/jobs/{job_id}/standby", json={"until": until}), 422, "invalid_input")
    assert error["param"] == "until"


@pytest.mark.parametrize("columns", [{"saves_ms": None}, {"priority_class": "spot"}])
async def test_what_cannot_be_lent_says_so(tenant: Tenant, context: ApiContext, columns: dict[str, Any]) -> None:
    job_id = await add_lender(context, tenant, **columns)
    error = error_of(await tenant.http.post(f"/v1/jobs/{job_id}/standby", json=HOUR), 409, "not_lendable")
    assert f"{job_id} cannot stand by: " in error["message"]


async def test_a_job_that_does_not_run_or_is_another_projects(
    tenant: Tenant, stranger: Tenant, context: ApiContext
) -> None:
    waits = await add_job(context, tenant)
    error_of(await tenant.http.post(f"/v1/jobs/{waits}/standby", json=HOUR), 409, "conflict")
    error_of(await tenant.http.post(f"/v1/jobs/{waits}/standby/end"), 409, "conflict")
    runs = await add_lender(context, tenant)
    for path in ("standby", "standby/end"):
        error_of(await stranger.http.post(f"/v1/jobs/{runs}/{path}", json=HOUR), 404, "not_found")
    error_of(await stranger.http.get(f"/v1/jobs/{runs}/standbys"), 404, "not_found")
