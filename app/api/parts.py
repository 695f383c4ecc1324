"""What the API is built from. `app.wiring` builds one `Parts` per process; routers reach it through `parts_of`."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from app.db.engine import Database
from app.db.listen import Listener
from app.ports.clock import Clock, IdSource
from app.ports.objects import ObjectStore
from app.settings import Settings


@dataclass(frozen=True, slots=True)
class Parts:
    """The caller starts and closes what is in here; the API only uses it."""

    database: Database
    listener: Listener
    objects: ObjectStore
    settings: Settings
    clock: Clock
    ids: IdSource


async def parts_of(request: Request) -> Parts:
    """The parts of the app that serves this request (a FastAPI dependency; async, since others go through a thread)."""
    parts: Parts = request.app.state.parts
    return parts
