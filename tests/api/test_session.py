"""Browsers that are signed in: what the cookie opens, what it does not, and when it ends."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import func, select, update

from app.api import session as routes
from app.api.app import create_app
from app.api.context import ApiContext
from app.db.access.keys import revoke_key
from app.db.access.sessions import delete_expired
from app.db.tables import api_keys, audit_log, jobs, sessions
from app.services.access import sign_in
from app.services.access.authenticate import REMEMBERED_MS
from tests.api.builders import add_job
from tests.api.conftest import Tenant, client, error_of, make_tenant
from tests.conftest import ManualClock
from tests.seeds import new_id

COOKIE = "allpass_session"


@asynccontextmanager
async def browser(api: FastAPI, key: str | None = None, base_url: str = "http://allpass") -> AsyncIterator[Any]:
    """A client with a jar of cookies; signed in when a key is given."""
    transport = httpx.ASGITransport(app=api)
    async with httpx.AsyncClient(transport=transport, base_url=base_url, timeout=30) as http:
        if key is not None:
            answer = await http.post("/v1/session", json={"api_key": key})
            assert answer.status_code == 200, answer.text
            http.headers["X-CSRF-Token"] = answer.json()["csrf_token"]
        yield http


async def count_of(context: ApiContext, table: Any) -> int:
    async with context.database.transaction() as connection:
        return int((await connection.execute(select(func.count()).select_from(table))).scalar_one())


async def test_a_session_stands_for_its_key(api: FastAPI, tenant: Tenant, context: ApiContext) -> None:
    """It tells who is signed in, reads what the key reads, and nothing of other projects."""
    job_id = await add_job(context, tenant)
    async with browser(api, tenant.key) as http, make_tenant(api, context) as other:
        told = (await http.get("/v1/session")).json()
        assert told["project_id"] == tenant.project_id
        assert (told["project_name"], told["key_name"], told["scopes"]) == (
            tenant.project_id,
            "test",
            ["read", "submit"],
        )
        assert set(told) == {
            "project_id", "project_name", "key_id", "key_name", "scopes", "csrf_token", "expires_at",
        }  # fmt: skip
        assert (await http.get(f"/v1/jobs/{job_id}")).status_code == 200
        error_of(await http.get(f"/v1/jobs/{await add_job(context, other)}"), 404, "not_found")


async def test_the_cookie_is_for_this_service_alone(api: FastAPI, tenant: Tenant, context: ApiContext) -> None:
    """No script reads it, no other site has it sent along, it names no path (so a prefix is its path), and over https
    it goes by nothing else."""
    async with browser(api) as http:
        answer = await http.post("/v1/session", json={"api_key": f"  {tenant.key}\n"})
        (set_cookie,) = answer.headers.get_list("set-cookie")
        name_and_value, *attributes = (part.strip() for part in set_cookie.split(";"))
        assert re.fullmatch(rf"{COOKIE}=[\w-]{{43}}", name_and_value)
        assert sorted(attributes) == ["HttpOnly", "SameSite=Strict"]
        assert answer.headers["cache-control"] == "no-store"
        assert [cookie.path for cookie in http.cookies.jar] == ["/v1"]
    secure = replace(context, settings=context.settings.model_copy(update={"public_url": "https://allpass.example"}))
    app = create_app(secure)
    async with browser(app) as http:
        answer = await http.post("/v1/session", json={"api_key": tenant.key})
        assert answer.headers["set-cookie"].endswith("; Secure")
    await app.state.authenticator.settled()


async def test_only_the_hash_of_a_token_is_stored(api: FastAPI, tenant: Tenant, context: ApiContext) -> None:
    """Neither the row nor the token for forms gives the cookie away."""
    async with browser(api, tenant.key) as http:
        token = http.cookies[COOKIE]
        async with context.database.transaction() as connection:
            (row,) = (await connection.execute(select(sessions))).all()
        assert token not in repr(row._mapping) and tenant.key not in repr(row._mapping)
        csrf = http.headers["X-CSRF-Token"]
        assert token not in csrf and len(csrf) == 64
        assert csrf == (await http.get("/v1/session")).json()["csrf_token"], "the same as long as the session lives"


async def test_below_a_prefix_the_cookie_stays_there(api: FastAPI, tenant: Tenant) -> None:
    """A proxy strips the prefix on the way in; the browser sends the cookie back below it, and nowhere else."""

    async def proxy(scope: Any, receive: Any, send: Any) -> None:
        inner = {**scope, "path": scope["path"].removeprefix("/team"), "raw_path": b""}
        await api(inner, receive, send)

    transport = httpx.ASGITransport(app=proxy)  # type: ignore[arg-type]  # any ASGI application
    async with httpx.AsyncClient(transport=transport, base_url="http://allpass") as http:
        answer = await http.post("/team/v1/session", json={"api_key": tenant.key})
        assert answer.status_code == 200
        assert [cookie.path for cookie in http.cookies.jar] == ["/team/v1"]
        assert (await http.get("/team/v1/jobs")).status_code == 200
        error_of(await http.get("/v1/jobs"), 401, "unauthenticated")
        token = {"X-CSRF-Token": answer.json()["csrf_token"]}
        assert (await http.delete("/team/v1/session", headers=token)).status_code == 204
        assert not list(http.cookies.jar)


async def test_a_wrong_key_signs_nobody_in(api: FastAPI, tenant: Tenant, context: ApiContext) -> None:
    """401 with what to do, and the key that was sent stands in no answer and in no log."""
    async with browser(api) as http:
        for key in ("ak_00000000_" + "0" * 64, "nonsense", " ", "ak_ü"):
            error = error_of(await http.post("/v1/session", json={"api_key": key}), 401, "unauthenticated")
            assert "unknown" in error["message"] or "no API key" in error["message"]
        assert not list(http.cookies.jar)
    assert await count_of(context, sessions) == await count_of(context, audit_log) == 0


@pytest.mark.parametrize(
    "body",
    [{}, {"api_key": ""}, {"api_key": 7}, {"api_key": "SECRET" * 100}, {"api_key": ["SECRET"]}, ["SECRET"], "SECRET"],
)
async def test_a_body_that_holds_no_key_is_refused_without_showing_it(
    api: FastAPI, tenant: Tenant, body: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """422 that names the field, and never what may be a key all the same."""
    caplog.set_level(logging.DEBUG)
    async with browser(api) as http:
        answer = await http.post("/v1/session", json=body)
    error_of(answer, 422, "invalid_input")
    assert "SECRET" not in answer.text + caplog.text


async def test_no_key_and_no_token_is_logged(api: FastAPI, tenant: Tenant, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever happens with them."""
    caplog.set_level(logging.DEBUG, logger="app")
    wrong = tenant.key[:-1] + ("0" if tenant.key[-1] != "0" else "1")
    async with browser(api, tenant.key) as http:
        await http.post("/v1/session", json={"api_key": wrong})
        await http.get("/v1/jobs")
        await http.post("/v1/jobs", json={}, headers={"X-CSRF-Token": "no"})
        token = http.cookies[COOKIE]
    assert "was refused: the API key is unknown" in caplog.text
    for secret in (tenant.key, wrong, wrong[12:40], token):
        assert secret not in caplog.text


WRITES = [
    ("POST", "/v1/jobs"),
    ("POST", "/v1/sweeps"),
    ("POST", "/v1/jobs/plan"),
    ("POST", f"/v1/jobs/{new_id('job')}/cancel"),
    ("PATCH", f"/v1/jobs/{new_id('job')}"),
    ("PUT", "/v1/secrets/HF_TOKEN"),
    ("DELETE", "/v1/secrets/HF_TOKEN"),
    ("DELETE", "/v1/session"),
]


@pytest.mark.parametrize(("method", "path"), WRITES)
async def test_what_may_change_something_needs_the_token_of_our_pages(
    api: FastAPI, context: ApiContext, tenant: Tenant, method: str, path: str
) -> None:
    """Another site can make a browser send the cookie, and not the header. That of another session is no better."""
    async with browser(api, tenant.key) as http, browser(api, tenant.key) as another:
        right = http.headers.pop("X-CSRF-Token")
        for sent in ({}, {"X-CSRF-Token": ""}, {"X-CSRF-Token": another.headers["X-CSRF-Token"]}):
            error = error_of(await http.request(method, path, headers=sent), 403, "forbidden")
            assert error["param"] == "X-CSRF-Token"
            assert "csrf_token of GET /v1/session" in error["message"]
        let_in = await http.request(method, path, headers={"X-CSRF-Token": right})
        assert let_in.status_code in (204, 404, 422), let_in.text
    assert await count_of(context, jobs) == 0


async def test_jobs_are_submitted_by_session(api: FastAPI, tenant: Tenant, context: ApiContext) -> None:
    """On the direct path as well, as the key that the session stands for."""
    async with browser(api, tenant.key) as http:
        told = (await http.get("/v1/session")).json()
        answer = await http.post("/v1/jobs", json={"app_id": tenant.app_id})
        assert answer.status_code == 201, answer.text
        async with context.database.transaction() as connection:
            assert (await connection.execute(select(jobs.c.key_id))).scalar_one() == told["key_id"]


async def test_a_key_goes_before_a_cookie(api: FastAPI, tenant: Tenant, stranger: Tenant, context: ApiContext) -> None:
    """Whose request it is says the header that was written on purpose; a wrong one is not mended by the cookie. What a
    proxy is told (Basic) is no key of ours."""
    job_id = await add_job(context, stranger)
    async with browser(api, tenant.key) as http:
        del http.headers["X-CSRF-Token"]
        bearer = {"Authorization": f"Bearer {stranger.key}"}
        assert (await http.get(f"/v1/jobs/{job_id}", headers=bearer)).status_code == 200
        body = {"app_id": stranger.app_id}
        assert (await http.post("/v1/jobs", json=body, headers=bearer)).status_code == 201, "a key needs no token"
        error_of(await http.get("/v1/jobs", headers={"Authorization": "Bearer ak_no"}), 401, "unauthenticated")
        assert (await http.get("/v1/jobs", headers={"Authorization": "Basic YTpi"})).status_code == 200
        error_of(await tenant.http.get("/v1/session"), 401, "unauthenticated")


async def test_agents_have_no_sessions(api: FastAPI, context: ApiContext) -> None:
    """No route of theirs takes a cookie, not even that of an administrator."""
    paths = {path: told for path, told in api.openapi()["paths"].items() if path.startswith("/v1/agent/")}
    assert len(paths) > 8
    async with make_tenant(api, context, ("admin", "owner")) as admin, browser(api, admin.key) as http:
        for path, methods in paths.items():
            for method, told in methods.items():
                filled = re.sub(r"\{\w+\}", "0" * 64, path)
                body = told.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
                answer = await http.request(method.upper(), filled, json=body)
                error_of(answer, 401, "unauthenticated")


async def test_a_session_may_what_its_key_may(api: FastAPI, context: ApiContext) -> None:
    """One of a key that reads, reads."""
    async with make_tenant(api, context, ("read",)) as reader, browser(api, reader.key) as http:
        assert (await http.get("/v1/session")).json()["scopes"] == ["read"]
        assert (await http.get("/v1/jobs")).status_code == 200
        assert "submit" in error_of(await http.post("/v1/jobs", json={}), 403, "forbidden")["message"]
        error_of(await http.get("/v1/keys"), 403, "forbidden")


async def test_signing_out_ends_it_on_the_server(api: FastAPI, tenant: Tenant, context: ApiContext) -> None:
    """A copy of the cookie opens nothing any more; another session of the same key lives on."""
    async with browser(api, tenant.key) as http, browser(api, tenant.key) as another:
        copy = {"Cookie": f"{COOKIE}={http.cookies[COOKIE]}"}
        assert (await http.get("/v1/jobs")).status_code == 200
        answer = await http.delete("/v1/session")
        assert (answer.status_code, answer.content) == (204, b"")
        assert not list(http.cookies.jar)
        async with client(api) as thief:
            error_of(await thief.get("/v1/jobs", headers=copy), 401, "unauthenticated")
            error_of(await thief.get("/v1/session", headers=copy), 401, "unauthenticated")
        error_of(await http.delete("/v1/session"), 401, "unauthenticated")
        assert (await another.get("/v1/jobs")).status_code == 200
    assert await count_of(context, sessions) == 1


async def test_signing_in_anew_ends_the_session_before(
    api: FastAPI, tenant: Tenant, stranger: Tenant, context: ApiContext
) -> None:
    """One browser has one; the other project's is what it sees from then on."""
    async with browser(api, tenant.key) as http:
        old = {"Cookie": f"{COOKIE}={http.cookies[COOKIE]}"}
        assert (await http.post("/v1/session", json={"api_key": stranger.key})).status_code == 200
        assert (await http.get("/v1/session")).json()["project_id"] == stranger.project_id
        async with client(api) as thief:
            error_of(await thief.get("/v1/jobs", headers=old), 401, "unauthenticated")
    assert await count_of(context, sessions) == 1


async def test_a_session_ends_when_it_is_not_used(
    api: FastAPI, tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """Twelve hours after it was used last, to the minute; what is used lives on, and never longer than a week."""
    hour = 3600
    async with browser(api, tenant.key) as idle, browser(api, tenant.key) as busy:
        begun_ms = clock.ms
        for _ in range(2):
            clock.advance(s=11 * hour)
            assert (await busy.get("/v1/jobs")).status_code == 200
            await api.state.authenticator.settled()
        error_of(await idle.get("/v1/jobs"), 401, "unauthenticated")
        while clock.ms < begun_ms + (7 * 24 - 11) * hour * 1000:
            clock.advance(s=10 * hour)
            assert (await busy.get("/v1/session")).status_code == 200
        clock.ms = begun_ms + 7 * 24 * hour * 1000 - 1
        assert (await busy.get("/v1/jobs")).status_code == 200
        clock.advance(ms=1)
        error_of(await busy.get("/v1/jobs"), 401, "unauthenticated")
        assert await count_of(context, sessions) == 2
        async with context.database.transaction() as connection:
            assert await delete_expired(connection, now_ms=clock.ms) == 2


async def test_it_says_until_when_it_lives(
    api: FastAPI, tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """Twelve hours from now on, and no longer than its key."""
    async with browser(api, tenant.key) as http:
        clock.advance(s=3600)
        assert (await http.get("/v1/session")).json()["expires_at"] == "2027-01-15T21:00:00Z"
        async with context.database.transaction() as connection:
            await connection.execute(update(api_keys).values(expires_ms=clock.ms + 60_000))
        assert (await http.get("/v1/session")).json()["expires_at"] == "2027-01-15T09:01:00Z"
        clock.advance(s=60)
        error_of(await http.get("/v1/jobs"), 401, "unauthenticated")


async def test_a_revoked_key_takes_its_sessions_with_it(api: FastAPI, context: ApiContext, clock: ManualClock) -> None:
    """At once where it is revoked, elsewhere when it is not remembered any more."""
    async with make_tenant(api, context, ("admin",)) as admin:
        made = (await admin.http.post("/v1/keys", json={"name": "b", "scopes": ["read"]})).json()
        async with browser(api, made["key"]) as http:
            assert (await http.get("/v1/jobs")).status_code == 200
            assert (await admin.http.delete(f"/v1/keys/{made['id']}")).status_code == 200
            error_of(await http.get("/v1/jobs"), 401, "unauthenticated")
            error_of(await http.post("/v1/session", json={"api_key": made["key"]}), 401, "unauthenticated")
        made = (await admin.http.post("/v1/keys", json={"name": "c", "scopes": ["read"]})).json()
        async with browser(api, made["key"]) as http:
            assert (await http.get("/v1/jobs")).status_code == 200
            async with context.database.transaction() as connection:
                await revoke_key(connection, made["id"], now_ms=clock.ms)
            clock.advance(ms=REMEMBERED_MS)
            error_of(await http.get("/v1/jobs"), 401, "unauthenticated")


async def test_sessions_of_an_archived_project_open_nothing(api: FastAPI, context: ApiContext) -> None:
    """They say so, can be ended, and open it again when it is restored."""
    async with (
        make_tenant(api, context, ("owner",)) as owner,
        make_tenant(api, context, ("read",)) as tenant,
        browser(api, tenant.key) as http,
    ):
        assert (await http.get("/v1/jobs")).status_code == 200
        path = f"/v1/projects/{tenant.project_id}"
        assert (await owner.http.post(f"{path}/archive")).status_code == 200
        error_of(await http.get("/v1/jobs"), 403, "project_archived")
        assert (await owner.http.post(f"{path}/restore")).status_code == 200
        assert (await http.get("/v1/jobs")).status_code == 200
        assert (await owner.http.post(f"{path}/archive")).status_code == 200
        assert (await http.delete("/v1/session")).status_code == 204


async def test_the_audit_log_says_who_signed_in(api: FastAPI, context: ApiContext) -> None:
    """And out, and what a session did: as its key. Only what a session did not show to be its own is refused there."""
    async with make_tenant(api, context, ("admin",)) as admin, browser(api, admin.key) as http:
        session_id = await _only_session(context)
        await http.put("/v1/secrets/HF_TOKEN", json={"value": "1234567"})
        await http.put("/v1/secrets/HF_TOKEN", json={"value": "1234567"}, headers={"X-CSRF-Token": "no"})
        key_id = (await http.get("/v1/session")).json()["key_id"]
        await http.delete("/v1/session")
        told = (await admin.http.get("/v1/audit")).json()["data"]
    assert [(one["action"], one["status"], one["key_id"]) for one in reversed(told)] == [
        ("POST /v1/session", 200, key_id),
        ("PUT /v1/secrets/{name}", 200, key_id),
        ("PUT /v1/secrets/{name}", 403, key_id),
        ("DELETE /v1/session", 204, key_id),
    ]
    assert (told[-1]["object_id"], told[0]["object_id"]) == (session_id, session_id)


async def _only_session(context: ApiContext) -> str:
    async with context.database.transaction() as connection:
        return str((await connection.execute(select(sessions.c.id))).scalar_one())


async def test_guessing_at_a_key_is_slowed_down_and_locks_nobody_out(
    api: FastAPI, tenant: Tenant, stranger: Tenant, clock: ManualClock
) -> None:
    """Who guesses at one key is told to wait; others at the same address sign in all the same, and so does who comes
    with a key that nobody guesses at, however many random ones were tried."""
    async with browser(api) as http:
        guess = tenant.key[:20] + "0" * 56
        for _ in range(routes.WRONG_KEYS_BURST):
            error_of(await http.post("/v1/session", json={"api_key": guess}), 401, "unauthenticated")
        error = error_of(await http.post("/v1/session", json={"api_key": guess}), 429, "rate_limited")
        assert "ak_" not in error["message"]
        error_of(await http.post("/v1/session", json={"api_key": tenant.key}), 429, "rate_limited")
        for number in range(300):
            key = f"ak_{number:08x}_" + "0" * 64
            error_of(await http.post("/v1/session", json={"api_key": key}), 401, "unauthenticated")
        assert (await http.post("/v1/session", json={"api_key": stranger.key})).status_code == 200
        assert (await tenant.http.get("/v1/jobs")).status_code == 200, "the key itself works on"
        clock.advance(s=5)
        assert (await http.post("/v1/session", json={"api_key": tenant.key})).status_code == 200
        for _ in range(routes.WRONG_KEYS_BURST):
            error_of(await http.post("/v1/session", json={"api_key": guess}), 401, "unauthenticated")


async def test_a_key_signs_in_as_often_as_it_may_call(api: FastAPI, tenant: Tenant, context: ApiContext) -> None:
    """More often than anybody may guess; of its sessions the newest ones stay."""
    most = 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sign_in, "MOST_SESSIONS", most)
        async with browser(api, tenant.key) as first:
            for _ in range(routes.WRONG_KEYS_BURST + 5):
                async with browser(api, tenant.key):
                    pass
            error_of(await first.get("/v1/jobs"), 401, "unauthenticated")
    assert await count_of(context, sessions) == most


async def test_another_site_signs_nobody_in(api: FastAPI, tenant: Tenant, context: ApiContext) -> None:
    """What the browser did next would be done in somebody else's project."""
    async with browser(api) as http:
        for site in ("cross-site", "same-site"):
            answer = await http.post("/v1/session", json={"api_key": tenant.key}, headers={"Sec-Fetch-Site": site})
            error_of(answer, 403, "forbidden")
        answer = await http.post("/v1/session", json={"api_key": tenant.key}, headers={"Sec-Fetch-Site": "same-origin"})
        assert answer.status_code == 200
    assert await count_of(context, sessions) == 1


@pytest.mark.parametrize(
    "cookie",
    [
        f"{COOKIE}=",
        f"{COOKIE}",
        f"{COOKIE}=" + "x" * 5000,
        f"{COOKIE}=ü",
        f"x{COOKIE}=a",
        "; ;=;",
        f'{COOKIE}="a b"',
    ],
)
async def test_a_cookie_that_is_none_opens_nothing(api: FastAPI, cookie: str) -> None:
    """401, whatever it holds. A key in its place is none either."""
    async with client(api) as http:
        for path in ("/v1/jobs", "/v1/session"):
            answer = await http.get(path, headers={"Cookie": cookie.encode("latin-1")})
            error_of(answer, 401, "unauthenticated")


async def test_a_key_is_no_token_and_a_token_no_key(api: FastAPI, tenant: Tenant) -> None:
    """Sent as the other, each is unknown: a stolen cookie needs its token against requests from elsewhere."""
    async with browser(api, tenant.key) as http, client(api) as thief:
        assert (await http.get("/v1/jobs")).status_code == 200
        token = http.cookies[COOKIE]
        error_of(await thief.get("/v1/jobs", headers={"Authorization": f"Bearer {token}"}), 401, "unauthenticated")
        error_of(await thief.get("/v1/jobs", headers={"Cookie": f"{COOKIE}={tenant.key}"}), 401, "unauthenticated")


async def test_the_right_cookie_is_found_among_others(api: FastAPI, tenant: Tenant) -> None:
    """Other services of the host have theirs; of two sessions that of the longer path comes first."""
    async with browser(api, tenant.key) as http, client(api) as other:
        token = http.cookies[COOKIE]
        for cookie in (f"a=b; {COOKIE}={token}", f"{COOKIE}={token};{COOKIE}=old", f"my{COOKIE}=x;  {COOKIE}={token} "):
            assert (await other.get("/v1/jobs", headers={"Cookie": cookie})).status_code == 200, cookie


async def test_requests_of_a_session_count_as_its_keys(context: ApiContext) -> None:
    """Signing in gives nobody more requests than the key has."""
    slow = context.settings.model_copy(update={"rate_limit_per_s": 1.0, "rate_limit_burst": 3})
    api = create_app(replace(context, settings=slow))
    async with make_tenant(api, context) as tenant, browser(api, tenant.key) as http:
        assert (await http.get("/v1/jobs")).status_code == 200
        assert (await tenant.http.get("/v1/jobs")).status_code == 200
        error_of(await http.get("/v1/jobs"), 429, "rate_limited")
    await api.state.authenticator.settled()


async def test_names_that_look_like_html_are_told_as_they_are(api: FastAPI, context: ApiContext) -> None:
    """As JSON, which no browser takes for a page."""
    name = "<img src=x onerror=alert(1)>"
    async with make_tenant(api, context, ("admin",)) as admin:
        made = (await admin.http.post("/v1/keys", json={"name": name, "scopes": ["read"]})).json()
        async with browser(api, made["key"]) as http:
            answer = await http.get("/v1/session")
            assert answer.json()["key_name"] == name
            assert answer.headers["content-type"] == "application/json"


async def test_many_signing_in_at_once_get_sessions_of_their_own(
    api: FastAPI, tenant: Tenant, context: ApiContext
) -> None:
    """Each with its own token."""
    async with browser(api) as http:
        answers = await asyncio.gather(
            *(http.post("/v1/session", json={"api_key": tenant.key}) for _ in range(10)),
        )
    tokens = {answer.json()["csrf_token"] for answer in answers}
    assert len(tokens) == 10
