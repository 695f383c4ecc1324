"""The real application over a real database and a real object store, called without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.api.app import create_app
from app.api.context import ApiContext
from app.db.engine import Database
from app.db.listen import Listener
from app.services.access.create_key import create_key
from app.settings import Settings
from app.storage.directory import DirectoryStore
from tests.conftest import CountingIds, ManualClock
from tests.seeds import seed_app, seed_project

SIGNING_KEY = "a signing key of tests, long enough"
SCOPES = ("read", "submit")


@dataclass(frozen=True)
class Tenant:
    """A project with one app, a key that may read and submit, and a client that sends it."""

    project_id: str
    app_id: str
    version_id: str
    key: str
    http: httpx.AsyncClient


@pytest.fixture
def context(database: Database, database_url: str, clock: ManualClock, ids: CountingIds, tmp_path: Path) -> ApiContext:
    store = DirectoryStore(tmp_path / "objects", "http://127.0.0.1:1", SIGNING_KEY, max_object_bytes=2**30, clock=clock)
    settings = Settings(
        database_url=database_url,  # type: ignore[arg-type]  # a text, as from the environment
        objects_signing_key=SIGNING_KEY,  # type: ignore[arg-type]  # the same
        secret_key="s" * 32,  # type: ignore[arg-type]  # the same
        poll_s=0.2,
        simulation_s=240,  # a busy machine is no bug
    )
    return ApiContext(
        database=database,
        listener=Listener(database_url, timeout_s=30.0),
        objects=store,
        settings=settings,
        clock=clock,
        ids=ids,
    )


@pytest.fixture
async def api(context: ApiContext) -> AsyncIterator[FastAPI]:
    app = create_app(context)
    yield app
    await app.state.authenticator.settled()  # before the database is closed under what it notes


@pytest.fixture
async def listening(context: ApiContext) -> AsyncIterator[None]:
    """Long polls are woken by notifications, not by their poll alone."""
    await context.listener.start()
    yield
    await context.listener.close()


@pytest.fixture
async def tenant(api: FastAPI, context: ApiContext) -> AsyncIterator[Tenant]:
    async with make_tenant(api, context) as made:
        yield made


@pytest.fixture
async def stranger(api: FastAPI, context: ApiContext) -> AsyncIterator[Tenant]:
    """Another project."""
    async with make_tenant(api, context) as made:
        yield made


@asynccontextmanager
async def make_tenant(api: FastAPI, context: ApiContext, scopes: tuple[str, ...] = SCOPES) -> AsyncIterator[Tenant]:
    async with context.database.transaction() as connection:
        project_id = await seed_project(connection)
        app_id, version_id = await seed_app(connection, project_id)
        key = await create_key(connection, project_id, "test", scopes, clock=context.clock, ids=context.ids)
    async with client(api, key) as http:
        yield Tenant(project_id, app_id, version_id, key, http)


def client(api: FastAPI, key: str | None = None) -> httpx.AsyncClient:
    """A client of the application; exceptions that reach the server are answers, as they are in production."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    transport = httpx.ASGITransport(app=api)
    return httpx.AsyncClient(transport=transport, base_url="http://allpass", headers=headers, timeout=30)


def error_of(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The error of an answer, which must be of this kind, in the one form."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(response.json()) == {"error"}
    assert error["code"] == code, error
    assert error["message"]
    assert error["request_id"] == response.headers["x-request-id"]
    return error
