"""One error body for everything, and nothing of our insides in it."""

from __future__ import annotations

import asyncio
import importlib
import logging
import pkgutil
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

import app
from app import errors
from app.api.context import ApiContext
from app.api.edge import MAX_BODY_BYTES
from app.api.errors import ErrorCode
from app.stack.postgres import EmbeddedPostgres
from tests.api.conftest import Tenant, client, error_of


def all_errors(root: type[errors.AllpassError] = errors.AllpassError) -> set[type[errors.AllpassError]]:
    return {root} | {one for child in root.__subclasses__() for one in all_errors(child)}


# Errors of these are never answered by the API: two run beside it, and the object store has its own door and codes.
_OTHER_DOORS = ("app.simulator.", "app.smoke.", "app.storage.endpoints")


def test_every_error_that_a_client_may_meet_has_a_documented_code() -> None:
    """All but provider errors and broken invariants, which stay inside. Every module is loaded, whatever ran before."""
    for module in pkgutil.walk_packages(app.__path__, "app."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    inside = {errors.InvariantBroken, *all_errors(errors.ProviderError)} - {errors.ProviderError}
    codes = {code.value for code in ErrorCode}
    missing = {
        error
        for error in all_errors() - inside
        if error.__module__.startswith("app.") and not error.__module__.startswith(_OTHER_DOORS)
        if error.code not in codes
    }
    assert not missing


async def test_paths_and_methods_that_do_not_exist(tenant: Tenant) -> None:
    """404 `not_found` and 405 `method_not_allowed`, with what is allowed in the header."""
    error_of(await tenant.http.get("/v1/nothing"), 404, "not_found")
    error_of(await tenant.http.get("/v1/jobs/"), 404, "not_found")
    response = await tenant.http.delete("/v1/nodes")
    error_of(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "GET"


async def test_query_parameters_are_named(tenant: Tenant) -> None:
    """`param` is the parameter's name."""
    for query, param in (({"limit": "0"}, "limit"), ({"limit": "x"}, "limit"), ({"cursor": "zz"}, "cursor")):
        error = error_of(await tenant.http.get("/v1/jobs", params=query), 422, "invalid_input")
        assert (error["param"], error["message"].startswith(f"{param}: ")) == (param, True)


async def test_nul_in_a_url_is_refused(tenant: Tenant) -> None:
    """PostgreSQL cannot compare with it: 422, not 500."""
    for url in ("/v1/jobs?app=a%00b", "/v1/jobs/job%00", "/v1/jobs?label=a:%00"):
        error_of(await tenant.http.get(url), 422, "invalid_input")


async def test_request_ids_are_taken_or_made(tenant: Tenant) -> None:
    """A sensible id of the caller comes back; anything else is replaced by one of ours."""
    mine = await tenant.http.get("/healthz", headers={"X-Request-Id": "trace-1.a:b"})
    assert mine.headers["x-request-id"] == "trace-1.a:b"
    for bad in ("a b", "x" * 101, "<script>"):
        made = await tenant.http.get("/healthz", headers={"X-Request-Id": bad})
        assert made.headers["x-request-id"].startswith("req_")
    error = error_of(await tenant.http.get("/v1/nothing", headers={"X-Request-Id": "mine"}), 404, "not_found")
    assert error["request_id"] == "mine"


async def test_bodies_are_bounded_whether_or_not_they_say_their_size(tenant: Tenant) -> None:
    """413 at the first byte too many, for every route; the largest body is still read."""
    body = b'{"app_id": "%b"}'
    exact = body % (b"a" * (MAX_BODY_BYTES - len(body) + 2))
    assert len(exact) == MAX_BODY_BYTES

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(exact) + 1, 65_536):
            yield (exact + b" ")[start : start + 65_536]

    for path in ("/v1/jobs", "/v1/apps"):
        error_of(await tenant.http.post(path, content=exact + b" "), 413, "too_large")
        error_of(await tenant.http.post(path, content=chunks()), 413, "too_large")
    error_of(await tenant.http.post("/v1/jobs", content=exact), 422, "invalid_input")  # read, and then too long an id


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"text"', b"\xff", b'{"name": "\\ud800"}', b"null"])
async def test_broken_bodies_are_told_in_the_same_form_by_ordinary_routes(tenant: Tenant, body: bytes) -> None:
    """FastAPI's own parsing ends in our error body too."""
    response = await tenant.http.post("/v1/apps", content=body, headers={"Content-Type": "application/json"})
    error_of(response, 422, "invalid_input")


async def test_a_body_sent_as_something_else_is_told_how_to_send_it(tenant: Tenant) -> None:
    """A form instead of JSON is the commonest mistake with curl."""
    response = await tenant.http.post("/v1/apps", data={"name": "x"})
    assert "application/json" in error_of(response, 422, "invalid_input")["message"]


async def test_an_error_of_ours_tells_nothing_of_our_insides(
    api: FastAPI, tenant: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    """500 `internal_error` with the request id; what happened is in the log, under that id."""

    @api.get("/v1/boom")
    async def boom() -> None:
        raise RuntimeError("password=hunter2")

    @api.get("/v1/broken")
    async def broken() -> None:
        raise errors.InvariantBroken("table jobs has a secret")

    for path, secret in (("/v1/boom", "hunter2"), ("/v1/broken", "secret")):
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            response = await tenant.http.get(path)
        error = error_of(response, 500, "internal_error")
        assert secret not in response.text
        assert error["retryable"] is False
        assert any(error["request_id"] in record.getMessage() and record.exc_info for record in caplog.records)


async def test_without_its_database_the_service_says_to_come_back(
    api: FastAPI, tenant: Tenant, context: ApiContext, postgres: EmbeddedPostgres
) -> None:
    """503, retryable, with Retry-After, on reads and on submissions; well again as soon as the database is."""
    assert (await tenant.http.get("/v1/jobs")).status_code == 200
    await asyncio.to_thread(postgres.stop)
    try:
        for request in (
            lambda: tenant.http.get("/v1/jobs"),
            lambda: tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id}),
            lambda: tenant.http.get("/v1/jobs"),
            lambda: tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id}),
        ):
            response = await request()
            error = error_of(response, 503, "unavailable")
            assert (error["retryable"], response.headers["retry-after"]) == (True, "1")
        async with client(api) as http:
            ready = await http.get("/readyz")
            assert (ready.status_code, ready.json()["parts"]["database"]) == (503, "does not answer")
            assert (await http.get("/healthz")).status_code == 200
    finally:
        postgres.start()
    assert await _until_created(tenant.http, tenant.app_id)


async def _until_created(http: httpx.AsyncClient, app_id: str) -> bool:
    """One 503 may follow for each connection that died with the old server; never more than there were."""
    for _ in range(10):
        response = await http.post("/v1/jobs", json={"app_id": app_id})
        if response.status_code == 201:
            return True
        error_of(response, 503, "unavailable")
    return False


async def test_openapi_documents_every_route_and_its_errors(api: FastAPI) -> None:
    """Each operation has a summary, a description, an error body for what it may answer, and ours only."""
    document = api.openapi()
    for path, methods in document["paths"].items():
        if path.startswith("/v1/agent"):
            continue
        for method, operation in methods.items():
            where = f"{method} {path}"
            assert operation.get("summary"), where
            assert operation.get("description"), where
            failures = {status: one for status, one in operation["responses"].items() if int(status) >= 400}
            assert "500" in failures, where
            if path.startswith("/v1/"):
                assert {"401", "403", "422", "503"} <= set(failures), where
            for status, one in failures.items():
                schema = one["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[-1]
                assert schema == ("Health" if (path, status) == ("/readyz", "503") else "ErrorBody"), where
    assert "HTTPValidationError" not in str(
        {path: one for path, one in document["paths"].items() if not path.startswith("/v1/agent")}
    )
    for code in ErrorCode:
        assert f"`{code}`" in document["info"]["description"]
