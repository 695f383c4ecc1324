"""The OpenAPI document, without a database behind it: for tests that are made from it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from app.api.app import create_app
from app.api.context import ApiContext
from app.api.openapi import operations
from app.db.engine import Database, make_engine
from app.db.listen import Listener
from app.settings import Settings
from app.storage.directory import DirectoryStore
from app.system import RandomIds, SystemClock

_NOWHERE = "postgresql://nobody@127.0.0.1:1/none"


@cache
def document() -> dict[str, Any]:
    """As the service gives it at /openapi.json."""
    clock = SystemClock()
    key = "a key that signs nothing at all here"
    settings = Settings(database_url=_NOWHERE, objects_signing_key=key, secret_key=key)  # type: ignore[arg-type]  # texts, as from the environment
    context = ApiContext(
        database=Database(make_engine(_NOWHERE, pool_size=1, timeout_s=1.0)),
        listener=Listener(_NOWHERE, timeout_s=1.0),
        objects=DirectoryStore(Path("nowhere"), "http://127.0.0.1:1", key, max_object_bytes=1, clock=clock),
        settings=settings,
        clock=clock,
        ids=RandomIds(clock),
    )
    return create_app(context).openapi()


def named_operations() -> dict[str, tuple[str, str, dict[str, Any]]]:
    """(method, path, operation) by operation id."""
    return {operation["operationId"]: (method, path, operation) for method, path, operation in operations(document())}


def resolve(schema: dict[str, Any]) -> dict[str, Any]:
    """What a reference stands for; anything else as it is."""
    name = schema.get("$ref", "").rpartition("/")[2]
    return document()["components"]["schemas"][name] if name else schema
