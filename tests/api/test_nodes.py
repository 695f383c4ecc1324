"""Nodes, and the health of the service."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fastapi import FastAPI

from allpass.wire.jobs import Health, Node
from app.api.context import ApiContext
from app.core.model.health import Chore, PartKind
from app.core.model.node import NodeState
from app.db.decisions.health import set_health
from app.db.decisions.item_failures import add_failure, delete_failures_of
from app.db.decisions.leadership import acquire
from app.db.tables import leader_leases
from tests.api.builders import add_job, add_run
from tests.api.conftest import Tenant, client, error_of
from tests.conftest import ManualClock
from tests.seeds import seed_node


async def test_nodes_are_listed_with_their_jobs(tenant: Tenant, stranger: Tenant, context: ApiContext) -> None:
    """Newest first; those that are gone only when asked for; another project's never."""
    job_id = await add_job(context, tenant)
    _, busy = await add_run(context, tenant, job_id, node_metered_micros=17)
    async with context.database.transaction() as connection:
        gone = await seed_node(
            connection, tenant.project_id, state=NodeState.TERMINATED, end_message="idle", rented_for_job_id=job_id
        )
        failed = await seed_node(connection, tenant.project_id, state=NodeState.FAILED)
        await seed_node(connection, stranger.project_id)
    here = [Node.model_validate(one) for one in (await tenant.http.get("/v1/nodes")).json()["data"]]
    assert [(node.id, node.job_ids, node.cost) for node in here] == [(busy, [job_id], 17)]
    every = (await tenant.http.get("/v1/nodes", params={"all": "true"})).json()["data"]
    assert [node["id"] for node in every] == [failed, gone, busy]
    assert (every[1]["message"], every[1]["rented_for_job_id"], every[0]["rented_for_job_id"]) == ("idle", job_id, None)


async def test_nodes_come_in_pages(tenant: Tenant, context: ApiContext) -> None:
    """Each once."""
    async with context.database.transaction() as connection:
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


async def test_ready_says_the_state_of_each_part(api: FastAPI, context: ApiContext) -> None:
    """`ok` only when a control loop leads and the object store answers; it serves (200) without them."""
    async with client(api) as http:
        unled = await http.get("/readyz")
        assert (unled.status_code, unled.json()["status"]) == (200, "degraded")
        assert unled.json()["parts"]["control"] == "no leader: jobs wait"
        async with context.database.transaction() as connection:
            await connection.execute(
                leader_leases.insert().values(
                    name="control", holder="x", term=1, expires_at=datetime.now(UTC) + timedelta(hours=1)
                )
            )
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "ok")
        assert ready.json()["parts"] == {"api": "ok", "database": "ok", "objects": "ok", "control": "ok"}


async def test_ready_says_what_of_the_control_loop_does_not_work(
    api: FastAPI, context: ApiContext, clock: ManualClock
) -> None:
    """It serves on: 200, for a load balancer. Each part that fails says since when and how often, in words that hold
    neither ids nor errors; one that has not finished in time is told too, and what works again is not."""
    now_ms = clock.now_ms()
    async with context.database.transaction() as connection:
        assert await acquire(connection, "control", "x", lease_s=3600)
        for _ in range(3):
            await set_health(connection, PartKind.CHORE, Chore.METER, failures=1, now_ms=now_ms, due_ms=now_ms + 1)
        await set_health(connection, PartKind.CHORE, Chore.CAPS, failures=0, now_ms=now_ms, due_ms=now_ms + 60_000)
        await set_health(connection, PartKind.CHORE, Chore.DECIDE, failures=0, now_ms=now_ms, due_ms=now_ms + 5)
        await add_failure(connection, "job_a", "row jobs", now_ms=now_ms)
        await add_failure(connection, "job_b", "place", now_ms=now_ms)
        await add_failure(connection, "job_c", "something that only a newer release knows", now_ms=now_ms)
    clock.advance(ms=10)
    async with client(api) as http:
        ready = await http.get("/readyz")
    health = Health.model_validate(ready.json())
    assert (ready.status_code, health.status, health.parts["control"]) == (200, "degraded", "degraded")
    assert {one.part: one.failures for one in health.degraded} == {"decide": 0, "meter": 3, "place": 1, "row jobs": 1}
    assert {one.part: one.since.timestamp() * 1000 for one in health.degraded}["meter"] == now_ms
    assert "what some machines cost is not booked: 3 failures" in ready.text
    assert "job_a" not in ready.text
    async with context.database.transaction() as connection:
        for chore in (Chore.METER, Chore.DECIDE):
            await set_health(connection, PartKind.CHORE, chore, failures=0, now_ms=now_ms, due_ms=now_ms + 60_000)
        for row_id in ("job_a", "job_b"):
            await delete_failures_of(connection, row_id)
    async with client(api) as http:
        assert (await http.get("/readyz")).json()["status"] == "ok"


async def test_ready_is_degraded_without_the_object_store(api: FastAPI, context: ApiContext) -> None:
    """Jobs can still be submitted and read: the answer stays 200, and says what is wrong with the store."""

    async def gone() -> str:
        return "the disk is gone"

    context.objects.check = gone  # type: ignore[method-assign]  # it fails from here on
    async with client(api) as http:
        ready = await http.get("/readyz")
    assert (ready.status_code, ready.json()["parts"]["objects"]) == (200, "the disk is gone")
