"""Idempotency keys: every POST of the OpenAPI document is carried out once, and repeats get its first answer."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import select

from app.api.app import create_app
from app.api.context import ApiContext
from app.api.openapi import operations
from app.core.model.job import JobState, PauseReason
from app.core.model.pool import Pool
from app.db.pools.pools import PoolRow, add_pool
from app.db.tables import idempotency_keys
from app.ports.objects import content_key
from tests.api.builders import add_decision, add_defragmentation, add_job, add_lender, add_reservable
from tests.api.conftest import Tenant, client, error_of, make_tenant
from tests.api.document import document
from tests.bundles import code
from tests.conftest import ManualClock
from tests.core.samples import OFFERS, snapshot
from tests.seeds import new_id, seed_project

REPLAYED = "idempotent-replayed"
BUNDLE = code()
ROWS = b"".join(b'{"prompt": "%d", "completion": "a"}\n' % number for number in range(20))
POSTS = {
    path: operation
    for method, path, operation in operations(document())
    # What agents send is fenced and named by content: it may be sent again as it is (see the description of the tag).
    if method == "POST" and operation["tags"] != ["agent"] and operation["operationId"] != "sign_in"
}
each_post = pytest.mark.parametrize("path", sorted(POSTS))


@pytest.fixture
async def admin(api: FastAPI, context: ApiContext) -> AsyncIterator[Tenant]:
    async with make_tenant(api, context, ("admin", "owner")) as made:
        yield made


async def prepared(  # noqa: PLR0912  (a table of paths)
    context: ApiContext, tenant: Tenant, path: str
) -> tuple[str, dict[str, Any] | None]:
    """A request that this POST can carry out: its path, and its body from the document's example."""
    template = path
    if "{job_id}" in path:
        path = path.replace("{job_id}", await _job_for(context, tenant, path))
    if "{defragmentation_id}" in path:
        path = path.replace("{defragmentation_id}", await add_defragmentation(context))
    if "{tick_id}" in path:
        path = path.replace("{tick_id}", str(await add_decision(context, snapshot(offers=OFFERS))))
    if "{project_id}" in path:
        async with context.database.transaction() as connection:
            path = path.replace("{project_id}", await seed_project(connection))
    if "{pool}" in path:
        async with context.database.transaction() as connection:
            row = PoolRow(Pool(f"p-{secrets.token_hex(8)}"), "", {}, 0)
            await add_pool(connection, row)
        path = path.replace("{pool}", row.pool.name)
    assert "{" not in path, f"say here how a thing for {path} is made"
    content = POSTS[template].get("requestBody", {}).get("content", {}) if template in POSTS else {}
    if not content:
        return path, None
    body = dict(content["application/json"]["example"])
    if template == "/v1/projects":
        body["name"] = new_id("name")  # no other project's
    if template == "/v1/pools":
        of_others = {"projects": [], "quotas": {}, "host_quotas": {}}
        body |= {"name": f"p-{secrets.token_hex(8)}"} | of_others
    if template == "/v1/reservations":
        body |= await add_reservable(context)
    if template.endswith("drain"):
        body["host"] = None  # the pool as a whole
    if "app_id" in body:
        body["app_id"] = tenant.app_id
    if template == "/v1/simulations":
        body["generated"] = {"jobs": 2}
    if template == "/v1/finetunes":
        body["data"] = {"sha256": hashlib.sha256(ROWS).hexdigest(), "name": "rows.jsonl"}
        key = content_key(tenant.project_id, hashlib.sha256(ROWS).hexdigest())
        await context.objects.put(key, ROWS, sha256=hashlib.sha256(ROWS).hexdigest())
    if "bundle_sha256" in body:
        body["bundle_sha256"] = hashlib.sha256(BUNDLE).hexdigest()
        key = content_key(tenant.project_id, body["bundle_sha256"])
        await context.objects.put(key, BUNDLE, sha256=body["bundle_sha256"])
    return path, body


async def _job_for(context: ApiContext, tenant: Tenant, path: str) -> str:
    if "/standby" in path:
        return await add_lender(context, tenant, stands_by=path.endswith("/end"))
    paused = {"state": JobState.PAUSED, "pause_reason": PauseReason.USER} if path.endswith("/resume") else {}
    return await add_job(context, tenant, **paused)


async def post(tenant: Tenant, path: str, body: dict[str, Any] | None, key: str, indent: int | None = None) -> Any:
    content = None if body is None else json.dumps(body, indent=indent)
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    return await tenant.http.post(path, content=content, headers=headers)


async def noted(tenant: Tenant) -> list[tuple[str, int]]:
    """What the audit log holds: each write that was carried out is one entry."""
    entries = (await tenant.http.get("/v1/audit")).json()["data"]
    return [(entry["action"], entry["status"]) for entry in entries]


def assert_replays(answer: httpx.Response, first: httpx.Response) -> None:
    """The same status and the same body; in submitted JSON, members may be in another order."""
    assert (answer.status_code, answer.json()) == (first.status_code, first.json())
    assert answer.headers[REPLAYED] == "true"
    assert answer.headers["content-type"] == first.headers["content-type"]


@each_post
async def test_it_is_documented(path: str) -> None:
    """Every POST takes the header and can answer the conflict; every success may say that it is a repeat."""
    operation = POSTS[path]
    assert "Idempotency-Key" in [parameter["name"] for parameter in operation["parameters"]]
    assert "idempotency_conflict" in operation["responses"]["409"]["content"]["application/json"]["examples"]
    for status, answer in operation["responses"].items():
        assert ("Idempotent-Replayed" in answer["headers"]) == (int(status) < 400)


@each_post
async def test_the_same_request_gets_its_first_answer(
    path: str, context: ApiContext, admin: Tenant, clock: ManualClock
) -> None:
    """The same status and the same body, later too; it is done once."""
    url, body = await prepared(context, admin, path)
    first = await post(admin, url, body, "k")
    assert first.is_success, first.text
    assert REPLAYED not in first.headers
    for _ in range(2):
        clock.advance(s=60)
        assert_replays(await post(admin, url, body, "k"), first)
    assert await noted(admin) == [(f"POST {path}", first.status_code)]


@each_post
async def test_another_request_under_the_key_is_refused(path: str, context: ApiContext, admin: Tenant) -> None:
    """Another body, be it by one space, or another path: 409, and nothing is done."""
    url, body = await prepared(context, admin, path)
    assert (await post(admin, url, body, "k")).is_success
    other = await post(admin, url, body if body is not None else {}, "k", indent=1)
    error = error_of(other, 409, "idempotency_conflict")
    assert (error["param"], "another body" in error["message"]) == ("Idempotency-Key", True)
    for elsewhere in sorted(set(POSTS) - {path}):
        elsewhere_url, elsewhere_body = await prepared(context, admin, elsewhere)
        error = error_of(await post(admin, elsewhere_url, elsewhere_body, "k"), 409, "idempotency_conflict")
        assert f"was used for POST {url}" in error["message"]
    assert [entry for entry in await noted(admin) if entry[1] < 400] == [(f"POST {path}", entry_status(path))]


def entry_status(path: str) -> int:
    """The status of a first success."""
    return max(int(status) for status in POSTS[path]["responses"] if int(status) < 300)


@each_post
async def test_the_key_is_the_projects_own(path: str, context: ApiContext, api: FastAPI, admin: Tenant) -> None:
    """Another project's request under the same key is its own: it is done, and answered with its own things."""
    async with make_tenant(api, context, ("admin", "owner")) as other:
        for tenant in (admin, other):
            url, body = await prepared(context, tenant, path)
            answer = await post(tenant, url, body, "k")
            assert answer.is_success, answer.text
            assert REPLAYED not in answer.headers
            assert await noted(tenant) == [(f"POST {path}", answer.status_code)]


@each_post
async def test_requests_at_once_have_one_effect_and_one_answer(path: str, context: ApiContext, admin: Tenant) -> None:
    """However many come together, one is carried out and the others get its answer."""
    url, body = await prepared(context, admin, path)
    answers = await asyncio.gather(*(post(admin, url, body, "k") for _ in range(8)))
    (first,) = [answer for answer in answers if REPLAYED not in answer.headers]
    assert first.is_success, first.text
    for answer in answers:
        if answer is not first:
            assert_replays(answer, first)
    assert await noted(admin) == [(f"POST {path}", first.status_code)]


async def test_an_error_leaves_the_key_unused(context: ApiContext, admin: Tenant) -> None:
    """A request that was refused may be sent again under its key when what stood in its way is gone."""
    path, body = await prepared(context, admin, "/v1/apps")
    assert body is not None
    missing = body | {"bundle_sha256": "a" * 64}
    error_of(await post(admin, path, missing, "k"), 422, "invalid_input")
    assert (await post(admin, path, body, "k")).status_code == 201
    job_id = await add_job(context, admin, state=JobState.SUCCEEDED)
    for _ in range(2):
        answer = await post(admin, f"/v1/jobs/{job_id}/cancel", None, "c")
        error_of(answer, 409, "conflict")
        assert REPLAYED not in answer.headers


async def test_a_bundle_url_is_not_repeated_when_it_has_expired(
    context: ApiContext, admin: Tenant, clock: ManualClock
) -> None:
    """The first URL while it can be used, then a new one, which is repeated in its turn."""
    path, body = await prepared(context, admin, "/v1/bundles")
    first = await post(admin, path, body, "k")
    clock.advance(s=context.settings.signed_url_ttl_s - 1)
    assert_replays(await post(admin, path, body, "k"), first)
    clock.advance(s=1)
    error_of(await post(admin, path, body, "k", indent=1), 409, "idempotency_conflict")
    second, *others = await asyncio.gather(*(post(admin, path, body, "k") for _ in range(4)))
    answers = {answer.content for answer in (second, *others)}
    assert len(answers) == 1
    assert first.content not in answers
    assert sum(REPLAYED not in answer.headers for answer in (second, *others)) == 1


async def test_kept_answers_are_sealed(context: ApiContext, admin: Tenant) -> None:
    """A new API key and a signed URL can be read from no row; under another service key they are not given again."""
    kept = []
    for path, secret in (("/v1/keys", "key"), ("/v1/bundles", "upload_url")):
        url, body = await prepared(context, admin, path)
        kept.append((url, body, (await post(admin, url, body, path)).json()[secret]))
    async with context.database.transaction() as connection:
        rows = repr((await connection.execute(select(idempotency_keys))).all())
    assert all(secret not in rows for _, _, secret in kept)
    rekeyed = replace(
        context,
        settings=context.settings.model_copy(update={"secret_key": type(context.settings.secret_key)("n" * 32)}),
    )
    async with client(create_app(rekeyed), admin.key) as http:
        for url, body, _ in kept:
            answer = await post(replace(admin, http=http), url, body, url)
            assert "cannot be opened any more" in error_of(answer, 409, "idempotency_conflict")["message"]
