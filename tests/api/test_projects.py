"""Projects: made, listed, archived and restored by owners of the installation, and apart from each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import text

from allpass.wire.jobs import JobRequest
from app.api.context import ApiContext
from app.core.model.job import JobState
from app.db.access.projects import without_ahead
from app.errors import Forbidden
from app.services.jobs.submit_jobs import JobSubmitter
from tests.api.builders import add_job
from tests.api.conftest import Tenant, client, error_of, make_tenant
from tests.seeds import new_id

VERBS = ("archive", "restore", "keys")


@pytest.fixture
async def owner(api: FastAPI, context: ApiContext) -> AsyncIterator[Tenant]:
    async with make_tenant(api, context, ("owner",)) as made:
        yield made


@pytest.fixture
async def admin(api: FastAPI, context: ApiContext) -> AsyncIterator[Tenant]:
    async with make_tenant(api, context, ("admin",)) as made:
        yield made


async def make(http: httpx.AsyncClient, name: str) -> dict[str, Any]:
    answer = await http.post("/v1/projects", json={"name": name})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def names(http: httpx.AsyncClient, **query: Any) -> list[str]:
    answer = await http.get("/v1/projects", params=query)
    assert answer.status_code == 200, answer.text
    return [one["name"] for one in answer.json()["data"]]


async def test_a_project_is_made_with_a_key_that_manages_it(api: FastAPI, owner: Tenant) -> None:
    """The key works at once, for its own project and not for the installation; names are given once."""
    made = await make(owner.http, "vision")
    assert made["key"]["scopes"] == ["admin"]
    async with client(api, made["key"]["key"]) as http:
        assert (await http.get("/v1/project")).json()["id"] == made["id"]
        assert (await http.post("/v1/keys", json={"name": "ci", "scopes": ["read"]})).status_code == 201
        error_of(await http.get("/v1/projects"), 403, "forbidden")
    assert error_of(await owner.http.post("/v1/projects", json={"name": "vision"}), 409, "conflict")["param"] == "name"
    assert await names(owner.http, name="vision") == ["vision"]


async def test_a_repeated_request_makes_one_project(owner: Tenant) -> None:
    headers = {"Idempotency-Key": "mine"}
    first = await owner.http.post("/v1/projects", json={"name": "speech"}, headers=headers)
    again = await owner.http.post("/v1/projects", json={"name": "speech"}, headers=headers)
    assert (first.status_code, first.content) == (201, again.content)
    assert await names(owner.http, name="speech") == ["speech"]


async def test_two_projects_see_nothing_of_each_other(api: FastAPI, owner: Tenant, context: ApiContext) -> None:
    """Neither the one that was made here of the first, nor the owner's of that: jobs, machines, keys, bill, records."""
    made = await make(owner.http, "apart")
    job_id = await add_job(context, owner)
    async with client(api, made["key"]["key"]) as http:
        assert (await http.put("/v1/secrets/HF_TOKEN", json={"value": "hf_of_this_project"})).status_code == 200
        for path in ("/v1/jobs", "/v1/nodes", "/v1/apps"):
            assert (await http.get(path)).json()["data"] == []
        for path in (f"/v1/jobs/{job_id}", f"/v1/jobs/{job_id}/events", f"/v1/jobs/{job_id}/explain"):
            error_of(await http.get(path), 404, "not_found")
        error_of(await http.post(f"/v1/jobs/{job_id}/cancel"), 404, "not_found")
        body = {"app_id": owner.app_id, "parameters": {}}
        error_of(await http.post("/v1/jobs", json=body), 404, "not_found")
        assert [one["id"] for one in (await http.get("/v1/keys")).json()["data"]] == [made["key"]["id"]]
    assert (await owner.http.get("/v1/secrets")).json()["data"] == []
    assert made["key"]["id"] not in (await owner.http.get("/v1/keys")).text


async def test_only_an_owner_may_and_nobody_becomes_one(api: FastAPI, admin: Tenant, owner: Tenant) -> None:
    """An administrator cannot grant `owner` to a key, and a project's own administrators neither; nor can an owner give
    it to keys of another project, where it could not be looked through."""
    for method, path in (("GET", ""), ("POST", ""), *(("POST", f"/{owner.project_id}/{verb}") for verb in VERBS)):
        refused = await admin.http.request(method, f"/v1/projects{path}", json={} if method == "POST" else None)
        assert "owner" in error_of(refused, 403, "forbidden")["message"]
    grab = {"name": "mine", "scopes": ["admin", "owner"]}
    error_of(await admin.http.post("/v1/keys", json=grab), 403, "forbidden")
    made = await make(owner.http, "elsewhere")
    error_of(await owner.http.post(f"/v1/projects/{made['id']}/keys", json=grab), 403, "forbidden")
    second = (await owner.http.post("/v1/keys", json={"name": "second", "scopes": ["owner"]})).json()
    assert second["scopes"] == ["admin", "owner"]  # so that a release before this one lets it in
    async with client(api, second["key"]) as http:
        assert (await http.get("/v1/projects")).status_code == 200


async def test_the_keys_of_owners_are_out_of_an_administrators_reach(owner: Tenant, api: FastAPI) -> None:
    """Who shares the project with an owner cannot revoke the owner's key; an owner cannot revoke the last one."""
    colleague = (await owner.http.post("/v1/keys", json={"name": "ada", "scopes": ["admin"]})).json()
    (owners,) = [one for one in (await owner.http.get("/v1/keys")).json()["data"] if "owner" in one["scopes"]]
    async with client(api, colleague["key"]) as http:
        error_of(await http.delete(f"/v1/keys/{owners['id']}"), 403, "forbidden")
    refused = error_of(await owner.http.delete(f"/v1/keys/{owners['id']}"), 409, "conflict")
    assert "last key with scope owner" in refused["message"]


async def test_a_project_whose_jobs_are_over_is_archived_and_comes_back(
    api: FastAPI, owner: Tenant, tenant: Tenant, context: ApiContext
) -> None:
    """Until a job is over it is not. Then all its keys are told why they are refused, and nothing is kept for it."""
    job_id = await add_job(context, tenant, state=JobState.PAUSED)
    path = f"/v1/projects/{tenant.project_id}"
    assert "not over" in error_of(await owner.http.post(f"{path}/archive"), 409, "conflict")["message"]
    async with context.database.transaction() as connection:
        await connection.execute(text("UPDATE jobs SET state = 'cancelled' WHERE id = :id"), {"id": job_id})
    for _ in range(2):
        closed = await owner.http.post(f"{path}/archive")
        assert closed.status_code == 200
        assert closed.json()["archived_at"] is not None
    assert "restore" in error_of(await tenant.http.get("/v1/jobs"), 403, "project_archived")["message"]
    async with context.database.transaction() as connection:
        assert tenant.project_id in await without_ahead(connection)
    error_of(await owner.http.post(f"{path}/keys", json={"name": "x", "scopes": ["read"]}), 409, "conflict")
    assert (await owner.http.post(f"{path}/restore")).json()["archived_at"] is None
    assert (await tenant.http.get("/v1/jobs")).status_code == 200


async def test_what_is_already_let_in_submits_nothing_to_an_archived_project(
    owner: Tenant, tenant: Tenant, context: ApiContext, api: FastAPI
) -> None:
    """Another process remembers a key for some seconds: the statement that writes the job is what refuses it."""
    elsewhere = JobSubmitter(context.database, context.settings, context.clock, context.ids)
    request = JobRequest.model_validate({"app_id": tenant.app_id, "parameters": {}})
    assert (await owner.http.post(f"/v1/projects/{tenant.project_id}/archive")).status_code == 200
    with pytest.raises(Forbidden, match="archived"):
        await elsewhere.submit_job(tenant.project_id, request, None)
    async with context.database.transaction() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM jobs"))).scalar_one() == 0


async def test_a_job_is_submitted_or_the_project_archived_never_both(
    owner: Tenant, tenant: Tenant, context: ApiContext
) -> None:
    """Asked for at once, again and again: who comes first wins, and the other one is told."""
    elsewhere = JobSubmitter(context.database, context.settings, context.clock, context.ids)
    request = JobRequest.model_validate({"app_id": tenant.app_id, "parameters": {}})
    for _ in range(10):
        submitted, archived = await asyncio.gather(
            elsewhere.submit_job(tenant.project_id, request, None),
            owner.http.post(f"/v1/projects/{tenant.project_id}/archive"),
            return_exceptions=True,
        )
        assert not isinstance(archived, BaseException)
        assert isinstance(submitted, Forbidden) == (archived.status_code == 200)
        async with context.database.transaction() as connection:
            await connection.execute(text("UPDATE jobs SET state = 'cancelled'"))
        await owner.http.post(f"/v1/projects/{tenant.project_id}/restore")


async def test_the_owners_project_is_not_archived(owner: Tenant) -> None:
    refused = await owner.http.post(f"/v1/projects/{owner.project_id}/archive")
    assert "owners" in error_of(refused, 409, "conflict")["message"]


async def test_a_key_for_another_project_is_noted_where_its_members_see_it(
    api: FastAPI, owner: Tenant, tenant: Tenant
) -> None:
    """In the audit log of both, with the key that asked for it."""
    answer = await owner.http.post(f"/v1/projects/{tenant.project_id}/keys", json={"name": "lost", "scopes": ["admin"]})
    assert answer.status_code == 201, answer.text
    async with client(api, answer.json()["key"]) as http:
        (noted,) = (await http.get("/v1/audit")).json()["data"]
    assert noted["action"] == "POST /v1/projects/{project_id}/keys"
    assert noted["object_id"] == answer.json()["id"]
    mine = (await owner.http.get("/v1/audit")).json()["data"]
    assert [one["object_id"] for one in mine] == [noted["object_id"]]


async def test_what_is_no_project_is_not_found(owner: Tenant) -> None:
    for wrong in (new_id("proj"), "proj_", "x", "job_01JD9K3W0A4T6Z8X2C5V"):
        for verb in ("archive", "restore"):
            error_of(await owner.http.post(f"/v1/projects/{wrong}/{verb}"), 404, "not_found")
    for body in ({}, {"name": ""}, {"name": "a\nb"}, {"name": "x" * 201}, {"name": "x", "ahead": True}):
        error_of(await owner.http.post("/v1/projects", json=body), 422, "invalid_input")


async def test_20_000_projects_are_read_page_by_page(owner: Tenant, context: ApiContext) -> None:
    """Each once, newest first; the name finds one of them."""
    many = text(
        "INSERT INTO projects (id, name, created_ms)"
        " SELECT 'proj_' || lpad(n::text, 20, '0'), 'many ' || n, n FROM generate_series(1, 20000) AS n"
    )
    async with context.database.transaction() as connection:
        await connection.execute(many)
    seen: list[str] = []
    cursor: str | None = None
    while True:
        query = {"limit": 1000} | ({"cursor": cursor} if cursor else {})
        page = (await owner.http.get("/v1/projects", params=query)).json()
        seen += [one["id"] for one in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) >= 20_001
    assert seen == sorted(seen, reverse=True)
    assert await names(owner.http, name="many 77") == ["many 77"]
