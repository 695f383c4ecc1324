"""What the API is built from. `app.wiring` builds one context per process; routers reach it through `context_of`."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from app.db.engine import Database
from app.db.listen import Listener
from app.ports.clock import Clock, IdSource
from app.ports.objects import ObjectStore
from app.settings import Settings


@dataclass(frozen=True, slots=True)
class ApiContext:
    """The caller starts and closes what is in here; the API only uses it."""

    database: Database
    listener: Listener
    objects: ObjectStore
    settings: Settings
    clock: Clock
    ids: IdSource


async def context_of(request: Request) -> ApiContext:
    """That of the app that serves this request (a FastAPI dependency; async, since others go through a thread)."""
    context: ApiContext = request.app.state.context
    return context
