"""Nodes, and the health of the service."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fastapi import FastAPI

from allpass.wire.jobs import Health, Node
from app.api.parts import Parts
from app.core.model.node import NodeState
from app.db.tables import leader_leases
from tests.api.builders import add_job, add_run
from tests.api.conftest import Tenant, client, error_of
from tests.seeds import seed_node


async def test_nodes_are_listed_with_their_jobs(tenant: Tenant, stranger: Tenant, parts: Parts) -> None:
    """Newest first; those that are gone only when asked for; another project's never."""
    job_id = await add_job(parts, tenant)
    _, busy = await add_run(parts, tenant, job_id, node_metered_micros=17)
    async with parts.database.transaction() as connection:
        gone = await seed_node(connection, tenant.project_id, state=NodeState.TERMINATED, end_message="idle")
        failed = await seed_node(connection, tenant.project_id, state=NodeState.FAILED)
        await seed_node(connection, stranger.project_id)
    here = [Node.model_validate(one) for one in (await tenant.http.get("/v1/nodes")).json()["data"]]
    assert [(node.id, node.job_ids, node.cost) for node in here] == [(busy, [job_id], 17)]
    every = (await tenant.http.get("/v1/nodes", params={"all": "true"})).json()["data"]
    assert [node["id"] for node in every] == [failed, gone, busy]
    assert every[1]["message"] == "idle"


async def test_nodes_come_in_pages(tenant: Tenant, parts: Parts) -> None:
    """Each once."""
    async with parts.database.transaction() as connection:
        ids = [await seed_node(connection, tenant.project_id) for _ in range(5)]
    first = (await tenant.http.get("/v1/nodes", params={"limit": 3})).json()
    rest = (await tenant.http.get("/v1/nodes", params={"limit": 3, "cursor": first["next_cursor"]})).json()
    assert [node["id"] for node in first["data"] + rest["data"]] == ids[::-1]
    assert rest["next_cursor"] is None
    error_of(await tenant.http.get("/v1/nodes", params={"cursor": "job_1"}), 422, "invalid_input")


async def test_health_needs_no_key_and_asks_nobody(api: FastAPI) -> None:
    """The process answers."""
    async with client(api) as http:
        health = Health.model_validate((await http.get("/healthz")).json())
    assert (health.status, health.parts) == ("ok", {"api": "ok"})


async def test_ready_says_the_state_of_each_part(api: FastAPI, parts: Parts) -> None:
    """`ok` only when a control loop leads and the object store answers; it serves (200) without them."""
    async with client(api) as http:
        unled = await http.get("/readyz")
        assert (unled.status_code, unled.json()["status"]) == (200, "degraded")
        assert unled.json()["parts"]["control"] == "no leader: jobs wait"
        async with parts.database.transaction() as connection:
            await connection.execute(
                leader_leases.insert().values(
                    name="control", holder="x", term=1, expires_at=datetime.now(UTC) + timedelta(hours=1)
                )
            )
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "ok")
        assert ready.json()["parts"] == {"api": "ok", "database": "ok", "objects": "ok", "control": "ok"}


async def test_ready_is_degraded_without_the_object_store(api: FastAPI, parts: Parts) -> None:
    """Jobs can still be submitted and read: the answer stays 200, and says what is wrong with the store."""

    async def gone() -> str:
        return "the disk is gone"

    parts.objects.check = gone  # type: ignore[method-assign]  # it fails from here on
    async with client(api) as http:
        ready = await http.get("/readyz")
    assert (ready.status_code, ready.json()["parts"]["objects"]) == (200, "the disk is gone")
