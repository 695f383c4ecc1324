"""API keys: made by administrators, shown once, and revoked for good."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import select

from app.api.context import ApiContext
from app.db.engine import Database
from app.db.tables import api_keys, audit_log, idempotency_keys
from app.errors import Forbidden, Unavailable
from app.services.access.authenticate import REMEMBERED_MS, Authenticator, Caller
from app.services.access.create_key import hash_key
from app.services.access.issue_key import issue_key
from app.services.access.sign_in import session_times
from tests.api.conftest import Tenant, client, error_of, make_tenant
from tests.conftest import ManualClock
from tests.seeds import new_id


@pytest.fixture
async def admin(api: FastAPI, context: ApiContext) -> AsyncIterator[Tenant]:
    async with make_tenant(api, context, ("admin",)) as made:
        yield made


async def create(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await http.post("/v1/keys", json={"name": "ci", "scopes": ["read"], **body})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def listed(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    answer = await http.get("/v1/keys")
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


async def test_a_new_key_works_and_is_shown_once(api: FastAPI, admin: Tenant, context: ApiContext) -> None:
    """The answer holds the key; no list, no log and no row does."""
    made = await create(admin.http, scopes=["submit", "read"])
    assert made["key"].startswith(made["prefix"] + "_")
    assert made["scopes"] == ["read", "submit"]
    async with client(api, made["key"]) as http:
        assert (await http.get("/v1/jobs")).status_code == 200
        error_of(await http.get("/v1/keys"), 403, "forbidden")
    async with context.database.transaction() as connection:
        for table in (api_keys, audit_log, idempotency_keys):
            assert made["key"] not in repr((await connection.execute(select(table))).all())
    shown = await listed(admin.http)
    assert made["key"] not in repr(shown)
    assert shown[0]["id"] == made["id"]
    assert "key" not in shown[0]


async def test_a_repeated_request_makes_one_key_and_shows_it_again(admin: Tenant, context: ApiContext) -> None:
    """Under the same Idempotency-Key, since whoever lost the answer needs it. It is kept sealed."""
    headers = {"Idempotency-Key": "mine"}
    first = await admin.http.post("/v1/keys", json={"name": "ci", "scopes": ["read"]}, headers=headers)
    again = await admin.http.post("/v1/keys", json={"name": "ci", "scopes": ["read"]}, headers=headers)
    assert (again.status_code, again.content) == (201, first.content)
    async with context.database.transaction() as connection:
        kept = repr((await connection.execute(select(idempotency_keys))).all())
    assert first.json()["key"] not in kept
    assert base64.b64encode(first.content).decode() not in kept
    other = await admin.http.post("/v1/keys", json={"name": "other", "scopes": ["read"]}, headers=headers)
    assert "another body" in error_of(other, 409, "idempotency_conflict")["message"]
    assert len(await listed(admin.http)) == 2


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "scopes[0]"),
        ({"name": ""}, "name"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "2031-01-01T00:00:00"}, "expires_at"),
        ({"project_id": "proj"}, "project_id"),
    ],
)
async def test_a_wrong_request_names_the_field(admin: Tenant, body: dict[str, Any], param: str) -> None:
    """And makes nothing."""
    answer = await admin.http.post("/v1/keys", json={"name": "ci", "scopes": ["read"], **body})
    assert error_of(answer, 422, "invalid_input")["param"] == param
    assert len(await listed(admin.http)) == 1


async def test_a_key_expires_when_it_was_told_to(api: FastAPI, admin: Tenant, clock: ManualClock) -> None:
    """To the millisecond."""
    expires_at = datetime.fromtimestamp(clock.ms / 1000, UTC) + timedelta(hours=1)
    made = await create(admin.http, expires_at=expires_at.isoformat())
    assert datetime.fromisoformat(made["expires_at"]) == expires_at
    async with client(api, made["key"]) as http:
        clock.advance(ms=3_599_999)
        assert (await http.get("/v1/jobs")).status_code == 200
        clock.advance(ms=1)
        error_of(await http.get("/v1/jobs"), 401, "unauthenticated")


async def test_a_key_cannot_grant_what_its_creator_lacks(context: ApiContext) -> None:
    """Whatever a route asks for: the rule is the service's own."""
    caller = Caller("key_1", "proj_1", frozenset({"read", "submit"}))
    async with context.database.transaction() as connection:
        with pytest.raises(Forbidden, match="cannot grant what it lacks: admin"):
            await issue_key(connection, caller, "x", ["admin"], expires_ms=None, clock=context.clock, ids=context.ids)


async def test_a_revoked_key_is_out_at_once_where_it_was_revoked(api: FastAPI, admin: Tenant) -> None:
    """Though it was remembered; the list says when, and revoking again changes nothing."""
    made = await create(admin.http)
    async with client(api, made["key"]) as http:
        assert (await http.get("/v1/jobs")).status_code == 200
        revoked = (await admin.http.delete(f"/v1/keys/{made['id']}")).json()
        assert "revoked" in error_of(await http.get("/v1/jobs"), 401, "unauthenticated")["message"]
    again = await admin.http.delete(f"/v1/keys/{made['id']}")
    assert (again.status_code, again.json()["revoked_at"]) == (200, revoked["revoked_at"])
    assert [one["revoked_at"] is None for one in await listed(admin.http)] == [False, True]


async def test_other_processes_refuse_a_revoked_key_within_seconds(
    admin: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """What they remember is five seconds old at most."""
    made = await create(admin.http)
    elsewhere = Authenticator(context.database, clock, session_times(context.settings))
    assert (await elsewhere.authenticate(made["key"])).key_id == made["id"]
    await admin.http.delete(f"/v1/keys/{made['id']}")
    assert elsewhere.remembered(made["key"]) is not None
    clock.advance(ms=REMEMBERED_MS)
    assert elsewhere.remembered(made["key"]) is None
    await elsewhere.settled()


async def test_the_last_admin_key_stays(admin: Tenant, clock: ManualClock) -> None:
    """It cannot revoke itself, told with the way out; with a second one it can. Expired ones do not count."""
    (own,) = await listed(admin.http)
    expires_at = datetime.fromtimestamp(clock.ms / 1000 + 60, UTC).isoformat()
    await create(admin.http, scopes=["admin"], expires_at=expires_at)
    clock.advance(s=61)
    message = error_of(await admin.http.delete(f"/v1/keys/{own['id']}"), 409, "conflict")["message"]
    assert "last key with scope admin" in message
    assert "create another" in message
    await create(admin.http, scopes=["admin"])
    assert (await admin.http.delete(f"/v1/keys/{own['id']}")).status_code == 200


async def test_two_admin_keys_cannot_revoke_each_other_at_once(api: FastAPI, admin: Tenant) -> None:
    """However the requests race, one stays."""
    (own,) = await listed(admin.http)
    other = await create(admin.http, scopes=["admin"])
    async with client(api, other["key"]) as http:
        assert (await http.get("/v1/keys")).status_code == 200
        answers = await asyncio.gather(
            admin.http.delete(f"/v1/keys/{other['id']}"), http.delete(f"/v1/keys/{own['id']}")
        )
    assert sorted(one.status_code for one in answers) == [200, 409]


async def test_keys_of_other_projects_do_not_exist(
    api: FastAPI, admin: Tenant, stranger: Tenant, context: ApiContext
) -> None:
    """Neither in the list nor by id; an id that is none is a 404 as well."""
    async with context.database.transaction() as connection:
        digest = hash_key(stranger.key)
        theirs = (await connection.execute(select(api_keys.c.id).where(api_keys.c.key_sha256 == digest))).scalar_one()
    assert theirs not in [one["id"] for one in await listed(admin.http)]
    for key_id in (theirs, new_id("key"), "key_x", new_id("job")):
        error_of(await admin.http.delete(f"/v1/keys/{key_id}"), 404, "not_found")
    async with client(api, stranger.key) as http:
        assert (await http.get("/v1/jobs")).status_code == 200


async def test_keys_come_in_pages(admin: Tenant) -> None:
    """Newest first, each once."""
    made = [(await create(admin.http, name=f"k{number}"))["id"] for number in range(4)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await admin.http.get("/v1/keys", params=query)).json()
        seen += [one["id"] for one in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen[:4] == made[::-1]
    assert len(seen) == 5
    error_of(await admin.http.get("/v1/keys", params={"cursor": "x"}), 422, "invalid_input")


async def test_noting_the_use_of_a_key_fails_no_request(
    tenant: Tenant, context: ApiContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the note cannot be written it is tried again with a later request."""
    authenticator = Authenticator(context.database, context.clock, session_times(context.settings))
    whole = Database.transaction
    calls = iter([True, False, False, False, False])

    def transaction(database: Database) -> Any:
        if next(calls):
            return whole(database)
        raise Unavailable("the database does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(Database, "transaction", transaction)
        await authenticator.authenticate(tenant.key)
        await authenticator.settled()
    authenticator.forget((await authenticator.authenticate(tenant.key)).key_id)
    await authenticator.authenticate(tenant.key)
    await authenticator.settled()
    async with context.database.transaction() as connection:
        assert (await connection.execute(select(api_keys.c.last_used_ms))).scalar_one() == context.clock.now_ms()
