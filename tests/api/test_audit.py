"""The audit log: every write, by whom, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import func, select

from app.api.context import ApiContext
from app.db.engine import Database
from app.db.tables import api_keys, audit_log, jobs
from app.errors import Unavailable
from app.services.access.create_key import hash_key
from tests.api.builders import add_job
from tests.api.conftest import Tenant, client, error_of, make_tenant
from tests.conftest import ManualClock


@pytest.fixture
async def admin(api: FastAPI, context: ApiContext) -> AsyncIterator[Tenant]:
    async with make_tenant(api, context, ("admin",)) as made:
        yield made


async def entries(tenant: Tenant) -> list[dict[str, Any]]:
    answer = await tenant.http.get("/v1/audit")
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


async def key_id_of(context: ApiContext, key: str) -> str:
    async with context.database.transaction() as connection:
        found: str = (
            await connection.execute(select(api_keys.c.id).where(api_keys.c.key_sha256 == hash_key(key)))
        ).scalar_one()
    return found


async def test_each_write_is_noted_once_with_its_object(admin: Tenant, context: ApiContext, clock: ManualClock) -> None:
    """Who, what, when, which request, which status; newest first. Reads are not noted."""
    cancelled = await add_job(context, admin)
    job = (await admin.http.post("/v1/jobs", json={"app_id": admin.app_id})).json()
    sweep = (await admin.http.post("/v1/sweeps", json={"app_id": admin.app_id, "parameters": [{}, {}]})).json()
    await admin.http.post(f"/v1/jobs/{cancelled}/cancel", headers={"X-Request-Id": "my-request"})
    key = (await admin.http.post("/v1/keys", json={"name": "k", "scopes": ["read"]})).json()
    await admin.http.delete(f"/v1/keys/{key['id']}")
    await admin.http.put("/v1/secrets/HF_TOKEN", json={"value": "123456"})
    await admin.http.delete("/v1/secrets/HF_TOKEN")
    await admin.http.get("/v1/jobs")
    noted = await entries(admin)
    assert [(one["action"], one["object_id"], one["status"]) for one in noted[::-1]] == [
        ("POST /v1/jobs", job["id"], 201),
        ("POST /v1/sweeps", sweep["id"], 201),
        ("POST /v1/jobs/{job_id}/cancel", cancelled, 200),
        ("POST /v1/keys", key["id"], 201),
        ("DELETE /v1/keys/{key_id}", key["id"], 200),
        ("PUT /v1/secrets/{name}", "HF_TOKEN", 200),
        ("DELETE /v1/secrets/{name}", "HF_TOKEN", 200),
    ]
    assert {one["key_id"] for one in noted} == {await key_id_of(context, admin.key)}
    assert noted[4]["request_id"] == "my-request"
    assert len({one["request_id"] for one in noted}) == 7
    assert all(one["at"].startswith("2027-01-15T08:00:00") for one in noted)


async def test_refused_writes_are_noted_with_what_was_answered(
    admin: Tenant, api: FastAPI, context: ApiContext
) -> None:
    """Wrong input, a missing scope, an object that is none. Strangers without a key are not anybody to note."""
    async with make_tenant(api, context, ("read",)) as reader:
        error_of(await reader.http.post("/v1/jobs", json={}), 403, "forbidden")
        reader_key = await key_id_of(context, reader.key)
    error_of(await admin.http.post("/v1/jobs", json={"app_id": 3}), 422, "invalid_input")
    error_of(await admin.http.post("/v1/jobs/nonsense/cancel"), 404, "not_found")
    error_of(await admin.http.post("/v1/apps", json={}), 422, "invalid_input")
    async with client(api) as nobody:
        error_of(await nobody.post("/v1/jobs", json={}), 401, "unauthenticated")
    noted = [(one["action"], one["object_id"], one["status"]) for one in await entries(admin)]
    assert noted == [
        ("POST /v1/apps", None, 422),
        ("POST /v1/jobs/{job_id}/cancel", "nonsense", 404),
        ("POST /v1/jobs", None, 422),
    ]
    async with context.database.transaction() as connection:
        rows = (await connection.execute(select(audit_log.c.key_id, audit_log.c.status))).all()
    assert (reader_key, 403) in [tuple(row) for row in rows]


async def test_a_repeated_submit_is_noted_once(admin: Tenant) -> None:
    """It was done once."""
    for _ in range(3):
        answer = await admin.http.post("/v1/jobs", json={"app_id": admin.app_id}, headers={"Idempotency-Key": "one"})
        assert answer.status_code == 201
    assert len(await entries(admin)) == 1


async def test_submits_that_are_committed_together_are_noted_apart(admin: Tenant, context: ApiContext) -> None:
    """As many entries as jobs, each with its own request, whether or not there was an idempotency key."""
    answers = await asyncio.gather(
        *(
            admin.http.post(
                "/v1/jobs",
                json={"app_id": admin.app_id},
                headers={"X-Request-Id": f"r{number}"} | ({"Idempotency-Key": f"k{number}"} if number % 2 else {}),
            )
            for number in range(20)
        )
    )
    noted = await entries(admin)
    assert {(one["request_id"], one["object_id"]) for one in noted} == {
        (f"r{number}", answer.json()["id"]) for number, answer in enumerate(answers)
    }
    async with context.database.transaction() as connection:
        assert (await connection.execute(select(func.count()).select_from(jobs))).scalar_one() == 20


async def test_the_log_is_the_projects_own_and_comes_in_pages(admin: Tenant, tenant: Tenant) -> None:
    """Each entry once, newest first; nothing of other projects."""
    await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id})
    for _ in range(5):
        await admin.http.post("/v1/jobs", json={"app_id": admin.app_id})
    seen: list[int] = []
    cursor = None
    while True:
        query = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = (await admin.http.get("/v1/audit", params=query)).json()
        seen += [one["id"] for one in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 5
    assert seen == sorted(seen, reverse=True)
    for wrong in ("x", "-1", "9" * 19, "²"):
        error_of(await admin.http.get("/v1/audit", params={"cursor": wrong}), 422, "invalid_input")


async def test_a_refusal_is_answered_as_it_is_though_it_cannot_be_noted(
    admin: Tenant, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The entry then stands in the server's own log."""

    async def gone(*_arguments: Any, **_more: Any) -> None:
        raise Unavailable("the database does not answer")

    monkeypatch.setattr("app.api.audit.add_entry", gone)
    error_of(await admin.http.post("/v1/bundles", json={}), 422, "invalid_input")
    assert "POST /v1/bundles" in caplog.text
    assert "not in the audit log" in caplog.text


async def test_what_notes_itself_is_done_and_noted_or_neither(
    admin: Tenant, context: ApiContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret whose entry cannot be written is not set."""

    async def gone(*_arguments: Any, **_more: Any) -> None:
        raise Unavailable("the database does not answer")

    with monkeypatch.context() as patched:
        patched.setattr("app.api.audit.add_entry", gone)
        answer = await admin.http.put("/v1/secrets/HF_TOKEN", json={"value": "123456"})
        error_of(answer, 503, "unavailable")
    assert (await admin.http.get("/v1/secrets")).json()["data"] == []
    assert isinstance(context.database, Database)
