"""The audit log: every write that a key asks for is noted, and administrators can read it.

A write is noted in the transaction that does it where its route uses `audited` (and where jobs are submitted), else
right after its answer. What a key was refused is noted too, except for its rate: noting that would be the very load
that the limit is to keep away.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from allpass.wire.access import AuditEntry
from allpass.wire.base import Page
from app.api.auth import CALLER, Admin
from app.api.context import ApiContext, context_of
from app.api.cursors import number_cursor
from app.api.errors import documented
from app.api.requests import Cursor, Limit
from app.api.views import instant, page
from app.db.access.audit import AuditRow, Author, add_entry, list_entries
from app.db.connection import Connection
from app.db.engine import Database
from app.errors import AllpassError
from app.ports.clock import Clock
from app.services.access.authenticate import Caller

NOTED = "allpass.noted"
_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_LONGEST_ID = 200
_LARGEST_ID = 2**63 - 1

log = logging.getLogger(__name__)
router = APIRouter(prefix="/v1", tags=["audit"])
ContextOf = Annotated[ApiContext, Depends(context_of)]


@dataclass
class Write:
    """A write on its way: what it does it with, and what will be noted of it. A `repeat` does nothing."""

    connection: Connection
    object_id: str | None
    status: int
    repeat: bool = False


@asynccontextmanager
async def audited(
    context: ApiContext, request: Request, object_id: str | None = None, status: int = 200
) -> AsyncIterator[Write]:
    """A transaction that notes, as its last step, what it did. A repeated request is noted once: it was done once."""
    async with context.database.transaction() as connection:
        write = Write(connection, object_id, status)
        yield write
        author = author_of(request.scope)
        if author is not None and not write.repeat:
            await add_entry(connection, author, write.object_id, write.status, now_ms=context.clock.now_ms())
    request.scope[NOTED] = True


def author_of(scope: Scope) -> Author | None:
    """Who makes this request, once a key was let in."""
    caller: Caller | None = scope.get(CALLER)
    if caller is None:
        return None
    path = getattr(scope.get("route"), "path", None) or scope["path"]
    return Author(caller.project_id, caller.key_id, scope["allpass.request_id"], f"{scope['method']} {path}")


class AuditTrail:
    """ASGI: notes writes that did not note themselves. It never fails a request that was done."""

    def __init__(self, app: ASGIApp, database: Database, clock: Clock) -> None:
        self._app = app
        self._database = database
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in _WRITES:
            await self._app(scope, receive, send)
            return
        status = int(HTTPStatus.INTERNAL_SERVER_ERROR)

        async def watching(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watching)
        except AllpassError as error:
            status = error.http_status
            raise
        finally:
            if NOTED not in scope and status != HTTPStatus.TOO_MANY_REQUESTS:
                await self._note(scope, status)

    async def _note(self, scope: Scope, status: int) -> None:
        author = author_of(scope)
        if author is None:
            return
        object_id = next(iter(scope.get("path_params", {}).values()), None)
        object_id = None if object_id is None else str(object_id)[:_LONGEST_ID]
        try:
            async with self._database.transaction() as connection:
                await add_entry(connection, author, object_id, status, now_ms=self._clock.now_ms())
        except AllpassError as error:
            log.error(  # noqa: TRY400 - the entry itself is what must be kept
                "not in the audit log (%s): %s %s answered %d", error.message, author, object_id, status
            )


@router.get("/audit", summary="Read the audit log", responses=documented(401, 403, 422, 503))
async def list_audit(caller: Admin, context: ContextOf, cursor: Cursor = None, limit: Limit = 100) -> Page[AuditEntry]:
    """Writes that keys of this project asked for, newest first, with what was answered."""
    before = number_cursor(cursor, _LARGEST_ID)
    async with context.database.transaction() as connection:
        rows = await list_entries(connection, caller.project_id, before=before, limit=limit + 1)
    return page(rows, limit, _view, lambda row: str(row.id))


def _view(row: AuditRow) -> AuditEntry:
    return AuditEntry(
        id=row.id,
        at=instant(row.at_ms),
        key_id=row.key_id,
        action=row.route,
        object_id=row.object_id,
        request_id=row.request_id,
        status=row.status,
    )
