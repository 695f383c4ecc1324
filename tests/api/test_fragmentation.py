"""What would fit on hosts of pools, over HTTP; and plans that do nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import insert, select

from app.api.context import ApiContext
from app.core.model.pool import JOINED
from app.db import tables as t
from tests.api.conftest import Tenant, error_of, make_tenant

GIB = 1024**3


@pytest.fixture
async def owner(api: FastAPI, context: ApiContext) -> AsyncIterator[Tenant]:
    async with make_tenant(api, context, ("owner",)) as made:
        yield made


async def seed_lab(context: ApiContext, hosts: int = 3, **pool: Any) -> None:
    """Pool `lab` with hosts of eight free GPUs, each with 128 processors."""
    kinds = [{"index": index, "type": "A100", "memory_bytes": 40 * GIB} for index in range(8)]
    async with context.database.transaction() as connection:
        values = {"name": "lab", "launcher": JOINED, "price_micros": 0, "created_ms": 0} | pool
        await connection.execute(insert(t.pools).values(**values))
        for number in range(hosts):
            row = {"id": f"host_{number}", "pool": "lab", "name": f"box-{number}", "nonce_sha256": bytes([number])}
            row |= {"facts": {"cpus": 128, "memory_bytes": 512 * GIB, "gpus": kinds}, "joined_ms": 0, "boot_id": ""}
            await connection.execute(insert(t.hosts).values(**row, heard_ms=context.clock.now_ms()))


async def test_requests_and_gangs_that_fit_now(context: ApiContext, tenant: Tenant) -> None:
    await seed_lab(context, hosts=17)
    told = (await tenant.http.get("/v1/fragmentation", params={"pool": "lab"})).json()
    assert (told["hosts"], told["whole_hosts"], told["gpus"], told["free_gpus"]) == (17, 17, 136, 136)
    fits = {(one["gpus"], one["cpus"]): one["fitting"] for one in told["requests"]}
    assert (fits[1, 8], fits[8, 128]) == (136, 17)
    gangs = {one["gpus"]: (one["fitting"], one["blocked_by_switch"]) for one in told["gangs"]}
    assert gangs == {128: (1, 8), 256: (0, 136)}


async def test_a_switch_is_what_the_label_of_a_pool_or_host_says(context: ApiContext, tenant: Tenant) -> None:
    await seed_lab(context, hosts=16, labels={"switch": "s1"})
    async with context.database.transaction() as connection:
        await connection.execute(t.hosts.update().where(t.hosts.c.id == "host_0").values(labels={"switch": "s2"}))
    told = (await tenant.http.get("/v1/fragmentation")).json()
    assert (told["switches"], told["gangs"][0]["fitting"], told["gangs"][0]["blocked_by_switch"]) == (2, 0, 128)


async def test_gangs_in_one_rack_are_told_where_somebody_says_racks(context: ApiContext, tenant: Tenant) -> None:
    """Under two switches of one rack there is room for one that no switch holds; a host that names no rack is in that
    of its switch."""
    await seed_lab(context, hosts=16, labels={"switch": "s1"})
    told = (await tenant.http.get("/v1/fragmentation")).json()
    assert (told["racks"], told["gangs"][0]["fitting_in_rack"]) == (0, None)
    async with context.database.transaction() as connection:
        for number in range(16):
            labels = {"switch": f"s{number % 2}"} | ({"rack": "r1"} if number != 5 else {})
            of = t.hosts.update().where(t.hosts.c.id == f"host_{number}")
            await connection.execute(of.values(labels=labels))
    told = (await tenant.http.get("/v1/fragmentation")).json()
    gang = told["gangs"][0]
    assert (told["racks"], told["switches"], gang["fitting"], gang["blocked_by_switch"]) == (1, 2, 0, 128)
    assert (gang["fitting_in_rack"], gang["blocked_by_rack"]) == (1, 0)


async def test_a_pool_that_is_not_there(context: ApiContext, tenant: Tenant) -> None:
    error_of(await tenant.http.get("/v1/fragmentation", params={"pool": "nowhere"}), 404, "not_found")
    assert (await tenant.http.get("/v1/fragmentation")).json()["hosts"] == 0


async def test_a_plan_is_told_and_nothing_is_written(context: ApiContext, owner: Tenant) -> None:
    await seed_lab(context)
    asked = {"goal": "pools", "pool": "lab", "dry_run": True}
    planned = await owner.http.post("/v1/defragmentations", json=asked)
    assert (planned.status_code, planned.json()["state"], planned.json()["nodes"]) == (201, "planned", 3)
    async with context.database.transaction() as connection:
        assert (await connection.execute(select(t.defragmentations.c.id))).all() == []
    error_of(await owner.http.post("/v1/defragmentations", json={**asked, "goal": "rent"}), 422, "invalid_input")
    error_of(await owner.http.post("/v1/defragmentations", json={**asked, "pool": "none"}), 404, "not_found")


async def test_one_that_was_asked_for_is_open_until_it_is_over(context: ApiContext, owner: Tenant) -> None:
    first = (await owner.http.post("/v1/defragmentations", json={"goal": "pools"})).json()
    again = await owner.http.post("/v1/defragmentations", json={"goal": "pools"})
    assert first["id"] in error_of(again, 409, "conflict")["message"]
    off = await owner.http.post(f"/v1/defragmentations/{first['id']}/cancel")
    assert (off.status_code, off.json()["state"]) == (200, "asked")
    listed = (await owner.http.get("/v1/defragmentations")).json()["items"]
    assert [one["id"] for one in listed] == [first["id"]]
