"""The class of jobs that name none: what owners settle for a project."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import select, update

from app.api.context import ApiContext
from app.db.tables import jobs, projects
from tests.api.conftest import Tenant, error_of, make_tenant
from tests.conftest import ManualClock
from tests.seeds import new_id


@pytest.fixture
async def owner(api: FastAPI, context: ApiContext) -> AsyncIterator[Tenant]:
    async with make_tenant(api, context, ("owner",)) as made:
        yield made


async def settle(owner: Tenant, tenant: Tenant, default_class: str) -> None:
    answer = await owner.http.patch(f"/v1/projects/{tenant.project_id}", json={"default_class": default_class})
    assert (answer.status_code, answer.json()["default_class"]) == (200, default_class), answer.text


async def by_another_process(context: ApiContext, tenant: Tenant, default_class: str) -> None:
    """What this one remembers is not told."""
    async with context.database.transaction() as connection:
        changed = update(projects).where(projects.c.id == tenant.project_id)
        await connection.execute(changed.values(default_class=default_class))


async def submit(tenant: Tenant, template: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
    body = {"app_id": tenant.app_id, "template": template or {}}
    answer = await tenant.http.post("/v1/jobs", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def class_of(context: ApiContext, job: dict[str, Any]) -> str:
    """As the job's row has it, which has to be what was told."""
    async with context.database.transaction() as connection:
        query = select(jobs.c.priority_class, jobs.c.template).where(jobs.c.id == job["id"])
        row = (await connection.execute(query)).one()
    assert row.priority_class == row.template["priority_class"] == job["template"]["priority_class"]
    return str(row.priority_class)


async def test_jobs_that_name_no_class_have_the_projects(owner: Tenant, tenant: Tenant, context: ApiContext) -> None:
    """From the next one on; whoever names one keeps it, the one that is the default elsewhere too; so do those that
    there are. A sweep is of one class."""
    before = await submit(tenant)
    await settle(owner, tenant, "spot")
    assert (await tenant.http.get("/v1/project")).json()["default_class"] == "spot"
    plain, spot, sure = [
        await submit(tenant, template)
        for template in ({}, {"priority_class": "spot"}, {"priority_class": "guaranteed"})
    ]
    classes = [await class_of(context, one) for one in (before, plain, spot, sure)]
    assert classes == ["guaranteed", "spot", "spot", "guaranteed"]
    body = {"app_id": tenant.app_id, "parameters": [{"lr": 1}, {"lr": 2}]}
    swept = (await tenant.http.post("/v1/sweeps", json=body)).json()["jobs"]
    assert [await class_of(context, one) for one in swept] == ["spot", "spot"]
    await settle(owner, tenant, "guaranteed")
    assert await class_of(context, await submit(tenant)) == "guaranteed"
    assert await class_of(context, plain) == "spot"


async def test_a_default_that_another_process_has_changed_is_found_out(
    owner: Tenant, tenant: Tenant, context: ApiContext
) -> None:
    """What is remembered is checked as the job is written: the very next job has the new one, either way."""
    for default_class in ("spot", "guaranteed", "spot"):
        await submit(tenant)
        await by_another_process(context, tenant, default_class)
        assert await class_of(context, await submit(tenant)) == default_class
        assert await class_of(context, await submit(tenant, {"priority_class": "guaranteed"})) == "guaranteed"


async def test_many_at_once_while_it_changes_each_have_one_that_was_settled(
    owner: Tenant, tenant: Tenant, context: ApiContext
) -> None:
    """Written together or apart, none is lost, each is told as it was written, and later ones have the new one."""
    await settle(owner, tenant, "spot")
    made, _ = await asyncio.gather(
        asyncio.gather(*(submit(tenant) for _ in range(20))), by_another_process(context, tenant, "guaranteed")
    )
    assert len([await class_of(context, one) for one in made]) == len({one["id"] for one in made}) == 20
    assert {await class_of(context, await submit(tenant)) for _ in range(3)} == {"guaranteed"}


async def test_a_repeated_request_keeps_what_it_was(
    owner: Tenant, tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """Under its key it is the first job, whatever is the default by then, and however long ago."""
    key = new_id("key")
    first = await submit(tenant, **{"Idempotency-Key": key})
    await settle(owner, tenant, "spot")
    clock.advance(s=60)
    assert await submit(tenant, **{"Idempotency-Key": key}) == first
    assert await class_of(context, first) == "guaranteed"


async def test_a_locked_job_of_a_spot_project_has_to_say_that_it_is_guaranteed(owner: Tenant, tenant: Tenant) -> None:
    """Both at once is no job; the refusal says where spot comes from, and the way out is taken."""
    await settle(owner, tenant, "spot")
    locked = {"placement": {"locked": True}}
    answer = await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id, "template": locked})
    refused = error_of(answer, 422, "invalid_input")
    assert refused["param"] == "template.placement.locked"
    assert "jobs of this project are spot unless they say otherwise" in refused["message"]
    await submit(tenant, {**locked, "priority_class": "guaranteed"})


@pytest.mark.parametrize("word", ["reserved", "", "GUARANTEED"])
async def test_a_word_that_is_no_class_means_guaranteed(tenant: Tenant, context: ApiContext, word: str) -> None:
    """A newer release's, or somebody's own: nobody leaves by mistake, and jobs are taken."""
    await by_another_process(context, tenant, word)
    assert await class_of(context, await submit(tenant)) == "guaranteed"
    assert (await tenant.http.get("/v1/project")).json()["default_class"] == "guaranteed"


@pytest.mark.parametrize(
    "body", [{}, {"default_class": "cheap"}, {"default_class": None}, {"default_class": ["spot"]}, {"name": "x"}]
)
async def test_what_is_no_class_is_refused(owner: Tenant, tenant: Tenant, body: dict[str, Any]) -> None:
    """The field is named, and nothing changes."""
    error_of(await owner.http.patch(f"/v1/projects/{tenant.project_id}", json=body), 422, "invalid_input")
    assert (await tenant.http.get("/v1/project")).json()["default_class"] == "guaranteed"


async def test_owners_settle_it_for_any_project_and_both_audit_logs_tell(
    api: FastAPI, context: ApiContext, owner: Tenant
) -> None:
    """Nobody else does, not for their own project either; what there is not is told."""
    async with make_tenant(api, context, ("admin", "read")) as admin:
        path = f"/v1/projects/{admin.project_id}"
        error_of(await admin.http.patch(path, json={"default_class": "spot"}), 403, "forbidden")
        await settle(owner, admin, "spot")
        listed = {one["id"]: one["default_class"] for one in (await owner.http.get("/v1/projects")).json()["data"]}
        assert listed[admin.project_id] == "spot"
        assert listed[owner.project_id] == "guaranteed"
        for one in (admin, owner):
            newest = (await one.http.get("/v1/audit")).json()["data"][0]
            assert (newest["action"], newest["object_id"]) == ("PATCH /v1/projects/{project_id}", admin.project_id)
    missing = await owner.http.patch(f"/v1/projects/{new_id('proj')}", json={"default_class": "spot"})
    error_of(missing, 404, "not_found")
