"""Budgets over REST: who may set them, who sees them, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import select

from app.api.context import ApiContext
from app.api.examples import REQUESTS
from app.db.offers.provider_states import set_configured
from app.db.tables import jobs, ledger
from app.services.money.change_budget import MOST_BUDGETS
from tests.api.conftest import Tenant, error_of, make_tenant
from tests.conftest import ManualClock
from tests.seeds import new_id, seed_node

DAY = {"period": "day", "amount_usd": 5.0}


@pytest.fixture
async def owner(api: FastAPI, context: ApiContext) -> AsyncIterator[Tenant]:
    async with make_tenant(api, context, ("owner",)) as made:
        yield made


@pytest.fixture
async def admin(api: FastAPI, context: ApiContext) -> AsyncIterator[Tenant]:
    async with make_tenant(api, context, ("admin",)) as made:
        yield made


async def put(who: Tenant, **body: Any) -> dict[str, Any]:
    answer = await who.http.put("/v1/budgets", json=DAY | body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def seen(who: Tenant) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = (await who.http.get("/v1/budgets")).json()["data"]
    return data


async def test_a_budget_is_set_replaced_and_removed(admin: Tenant) -> None:
    """The one for the same keeps its id; another period is another budget; the audit log tells of each write."""
    first = await put(admin)
    assert (first["scope"], first["key_id"], first["provider"], first["amount"]) == ("project", None, None, 5_000_000)
    assert (first["spent"], first["left"], first["foreseen"], first["state"]) == (0, 5_000_000, 0, "open")
    assert first["begins_at"] < first["ends_at"]
    again = await put(admin, amount_usd=0)
    assert (again["id"], again["amount"], again["state"]) == (first["id"], 0, "used_up")
    month = await put(admin, period="month")
    assert [one["id"] for one in await seen(admin)] == [month["id"], first["id"]]
    gone = await admin.http.delete(f"/v1/budgets/{first['id']}")
    assert (gone.status_code, gone.json()["amount"]) == (200, 0)
    assert [one["id"] for one in await seen(admin)] == [month["id"]]
    error_of(await admin.http.delete(f"/v1/budgets/{first['id']}"), 404, "not_found")
    noted = (await admin.http.get("/v1/audit")).json()["data"]
    assert [(one["action"], one["object_id"], one["status"]) for one in noted] == [
        ("DELETE /v1/budgets/{budget_id}", first["id"], 404),
        ("DELETE /v1/budgets/{budget_id}", first["id"], 200),
        ("PUT /v1/budgets", month["id"], 200),
        ("PUT /v1/budgets", first["id"], 200),
        ("PUT /v1/budgets", first["id"], 200),
    ]


async def test_each_project_sees_its_own_and_owners_those_of_the_installation(admin: Tenant, owner: Tenant) -> None:
    """Neither is shown what another project's budget is, and nobody removes it."""
    ours, theirs = await put(admin), await put(owner)
    every = await put(owner, scope="installation")
    assert [one["id"] for one in await seen(admin)] == [ours["id"]]
    assert {one["id"] for one in await seen(owner)} == {theirs["id"], every["id"]}
    assert every["scope"] == "installation"
    refused = error_of(await admin.http.put("/v1/budgets", json=DAY | {"scope": "installation"}), 403, "forbidden")
    assert "owner" in refused["message"]
    for hidden in (theirs, every):
        error_of(await admin.http.delete(f"/v1/budgets/{hidden['id']}"), 404, "not_found")
    error_of(await owner.http.delete(f"/v1/budgets/{ours['id']}"), 404, "not_found")
    assert (await owner.http.delete(f"/v1/budgets/{every['id']}")).status_code == 200


async def test_what_is_spent_in_the_period_is_told(admin: Tenant, context: ApiContext, clock: ManualClock) -> None:
    """Of the project, and of each key that submitted a job; with what will be spent at the end."""
    await put(admin)
    async with context.database.transaction() as connection:
        at = {"provider": "cloud", "requested_ms": clock.ms, "billed_from_ms": clock.ms, "metered_until_ms": clock.ms}
        node_id = await seed_node(connection, admin.project_id, **at, metered_micros=1_000_000)
        line = {"payer": "boot", "from_ms": clock.ms - 1000, "to_ms": clock.ms, "amount_micros": 4_100_000}
        await connection.execute(ledger.insert().values(project_id=admin.project_id, node_id=node_id, **line))
    (told,) = await seen(admin)
    assert (told["spent"], told["left"], told["state"]) == (4_100_000, 900_000, "near")
    assert told["foreseen"] > told["spent"]


async def test_a_key_and_a_provider_have_budgets_of_their_own(admin: Tenant, context: ApiContext) -> None:
    """A key that was revoked keeps its budget, for its jobs go on; a provider that left the settings, too."""
    key_id = (await admin.http.post("/v1/keys", json={"name": "ci", "scopes": ["submit"]})).json()["id"]
    async with context.database.transaction() as connection:
        await set_configured(connection, ["vast"])
    both = await put(admin, key_id=key_id, provider="vast")
    assert (both["key_id"], both["provider"]) == (key_id, "vast")
    assert (await put(admin, key_id=key_id))["id"] != both["id"]
    assert (await admin.http.delete(f"/v1/keys/{key_id}")).status_code == 200
    async with context.database.transaction() as connection:
        await set_configured(connection, [])
    assert len(await seen(admin)) == 2
    assert (await put(admin, key_id=key_id, provider="vast", amount_usd=1))["id"] == both["id"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"period": "week"}, 422, "period"),
        ({"amount_usd": -1}, 422, "amount_usd"),
        ({"amount_usd": "5"}, 422, "amount_usd"),
        ({"amount_usd": 0.0000001}, 422, "amount_usd"),
        ({"amount_usd": 1_000_001}, 422, "amount_usd"),
        ({"provider": "vsat"}, 422, "provider"),
        ({"key_id": "key_none"}, 404, "key_id"),
        ({"key_id": new_id("key")}, 404, "key_id"),
        ({"scope": "team"}, 422, "scope"),
        ({"amount": 5}, 422, "amount"),
    ],
)
async def test_what_is_no_budget_is_refused(admin: Tenant, body: dict[str, Any], status: int, param: str) -> None:
    """Each by its field; a misspelt provider with those that there are. Nothing is written."""
    code = "invalid_input" if status == 422 else "not_found"
    error = error_of(await admin.http.put("/v1/budgets", json=DAY | body), status, code)
    assert error["param"] == param
    assert await seen(admin) == []


async def test_a_key_of_one_project_is_none_of_all(owner: Tenant, admin: Tenant) -> None:
    """Nor is a key of another project one of this."""
    key_id = (await admin.http.post("/v1/keys", json={"name": "ci", "scopes": ["submit"]})).json()["id"]
    body = DAY | {"scope": "installation", "key_id": key_id}
    assert error_of(await owner.http.put("/v1/budgets", json=body), 422, "invalid_input")["param"] == "key_id"
    error_of(await owner.http.put("/v1/budgets", json=DAY | {"key_id": key_id}), 404, "not_found")


async def test_there_are_not_more_than_decisions_can_look_at(admin: Tenant, context: ApiContext) -> None:
    """The one too many is not written; one that is there can be changed all the same."""
    async with context.database.transaction() as connection:
        await set_configured(connection, [f"p{number}" for number in range(MOST_BUDGETS)])
    for number in range(MOST_BUDGETS):
        await put(admin, provider=f"p{number}")
    assert "200" in error_of(await admin.http.put("/v1/budgets", json=DAY), 409, "conflict")["message"]
    assert (await put(admin, provider="p0", amount_usd=1))["amount"] == 1_000_000


async def test_two_replicas_that_set_it_at_once_agree(admin: Tenant) -> None:
    """Both are answered, with the same id."""
    answers = await asyncio.gather(*(put(admin, amount_usd=number) for number in range(1, 9)))
    assert len({one["id"] for one in answers}) == 1
    assert len(await seen(admin)) == 1


async def test_a_job_keeps_the_key_that_submitted_it(admin: Tenant, context: ApiContext) -> None:
    """A sweep's jobs, too; and a repeated request gets its first answer."""
    body = dict(REQUESTS["JobRequest"]) | {"app_id": admin.app_id, "template": {}}
    body.pop("from_checkpoint", None)
    for _ in range(2):
        answer = await admin.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "once"})
        assert answer.status_code == 201, answer.text
    swept = {"app_id": admin.app_id, "parameters": [{}, {}]}
    assert (await admin.http.post("/v1/sweeps", json=swept)).status_code == 201
    (mine,) = [one["id"] for one in (await admin.http.get("/v1/keys")).json()["data"]]
    async with context.database.transaction() as connection:
        kept = list((await connection.execute(select(jobs.c.key_id))).scalars())
    assert kept == [mine] * 3
