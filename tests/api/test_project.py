"""The project: what is settled for all of its jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI

from app.api.context import ApiContext
from app.db.access.projects import without_ahead
from app.db.decisions.snapshots import read_snapshot
from tests.api.conftest import Tenant, error_of, make_tenant
from tests.conftest import ManualClock


@pytest.fixture
async def admin(api: FastAPI, context: ApiContext) -> AsyncIterator[Tenant]:
    async with make_tenant(api, context, ("read", "admin")) as made:
        yield made


async def test_machines_are_kept_for_jobs_to_come_unless_it_is_switched_off(
    admin: Tenant, tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """It is told, it is changed, decisions see it from then on, and other projects stay as they are."""
    told = (await admin.http.get("/v1/project")).json()
    assert (told["id"], told["ahead"]) == (admin.project_id, True)
    changed = await admin.http.patch("/v1/project", json={"ahead": False})
    assert (changed.status_code, changed.json()) == (200, {**told, "ahead": False})
    assert (await admin.http.get("/v1/project")).json()["ahead"] is False
    assert (await tenant.http.get("/v1/project")).json()["ahead"] is True
    async with context.database.transaction() as connection:
        assert (await read_snapshot(connection, clock.now_ms(), (), 60_000)).no_ahead == (admin.project_id,)
    await admin.http.patch("/v1/project", json={"ahead": True})
    async with context.database.transaction() as connection:
        assert await without_ahead(connection) == ()
    noted = (await admin.http.get("/v1/audit")).json()["data"]
    assert [one["action"] for one in noted[:2]] == ["PATCH /v1/project"] * 2
    assert noted[0]["object_id"] == admin.project_id


async def test_what_is_no_answer_is_refused(admin: Tenant, tenant: Tenant) -> None:
    """The field is named, nothing is changed, and only an administrator may."""
    for body in ({}, {"ahead": "maybe"}, {"ahead": None}, {"ahead": False, "name": "x"}):
        error_of(await admin.http.patch("/v1/project", json=body), 422, "invalid_input")
    assert (await admin.http.get("/v1/project")).json()["ahead"] is True
    assert (await tenant.http.patch("/v1/project", json={"ahead": False})).status_code == 403
