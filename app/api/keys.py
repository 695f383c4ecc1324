"""API keys: for administrators."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from allpass.wire.access import CreatedKey, Key, KeyRequest
from allpass.wire.base import Page
from app.api.audit import Write, audited
from app.api.auth import Admin
from app.api.context import ApiContext, context_of
from app.api.cursors import id_cursor
from app.api.errors import documented
from app.api.once import answer_once
from app.api.requests import Cursor, IdempotencyHeader, KeyId, Limit, known_id
from app.api.views import instant, instant_or_none, page
from app.db.access import keys as rows
from app.db.access.keys import KeyFacts
from app.services.access.issue_key import CREATED, IssuedKey, issue_key, revoke_key

router = APIRouter(prefix="/v1", tags=["keys"])
ContextOf = Annotated[ApiContext, Depends(context_of)]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@router.post(
    "/keys",
    operation_id="create_key",
    summary="Create an API key",
    status_code=CREATED,
    response_model=CreatedKey,
    responses=documented(401, 403, 409, 413, 422, 503),
)
async def create(
    body: KeyRequest, request: Request, caller: Admin, context: ContextOf, idempotency_key: IdempotencyHeader = None
) -> Response:
    """The only answer that holds the key itself, which is stored as a hash alone.

    Sent again under its `Idempotency-Key`, within a day, the request gets the same answer, key and all: until then that
    answer is kept, encrypted.
    """
    expires_ms = expiry_of(body)

    async def act(write: Write) -> CreatedKey:
        issued = await issue_key(
            write.connection,
            caller,
            body.name,
            body.scopes,
            expires_ms=expires_ms,
            clock=context.clock,
            ids=context.ids,
        )
        write.object_id = issued.facts.key_id
        return created_view(issued)

    return await answer_once(context, request, act, status=CREATED)


@router.get("/keys", summary="List API keys", responses=documented(401, 403, 422, 503))
async def list_keys(caller: Admin, context: ContextOf, cursor: Cursor = None, limit: Limit = 100) -> Page[Key]:
    """Newest first, revoked and expired ones too."""
    before = id_cursor(cursor, "key")
    async with context.database.transaction() as connection:
        found = await rows.list_keys(connection, caller.project_id, before=before, limit=limit + 1)
    return page(found, limit, key_view, lambda row: row.key_id)


@router.delete(
    "/keys/{key_id}",
    operation_id="revoke_key",
    summary="Revoke an API key",
    responses=documented(401, 403, 404, 409, 413, 422, 503),
)
async def revoke(key_id: KeyId, request: Request, caller: Admin, context: ContextOf) -> Key:
    """For good: here at once, in other processes of the service within 5 seconds. The last key with scope `admin`
    or `owner` cannot be revoked (409), and one with scope `owner` by an owner alone (403)."""
    known_id(key_id, "key", "key")
    async with audited(context, request, key_id) as write:
        revoked = await revoke_key(write.connection, caller, key_id, now_ms=context.clock.now_ms())
    request.app.state.authenticator.forget(key_id)
    return key_view(revoked)


def expiry_of(body: KeyRequest) -> int | None:
    return None if body.expires_at is None else (body.expires_at - _EPOCH) // _MS


def created_view(issued: IssuedKey) -> CreatedKey:
    return CreatedKey(**key_view(issued.facts).model_dump(), key=issued.key)


def key_view(row: KeyFacts) -> Key:
    return Key(
        id=row.key_id,
        name=row.name,
        prefix=row.prefix,
        scopes=list(row.scopes),
        created_at=instant(row.created_ms),
        expires_at=instant_or_none(row.expires_ms),
        last_used_at=instant_or_none(row.last_used_ms),
        revoked_at=instant_or_none(row.revoked_ms),
    )
