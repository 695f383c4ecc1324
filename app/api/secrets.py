"""Secrets: write-only. Their names are listed, their values are given to runs and to nobody else."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request

from allpass.wire.access import LONGEST_SECRET_NAME, SECRET_NAME_PATTERN, Secret, SecretRequest
from allpass.wire.base import Page
from app.api.audit import audited
from app.api.auth import Reader, Submitter
from app.api.context import ApiContext, context_of
from app.api.cursors import cursor_text, text_cursor
from app.api.errors import documented
from app.api.requests import Cursor, Limit
from app.api.views import instant, page
from app.db.access.secrets import SecretRow, list_secrets
from app.services.access.keep_secret import check_name, drop_secret, set_secret
from app.services.kit.seal import Sealer

router = APIRouter(prefix="/v1", tags=["secrets"])
ContextOf = Annotated[ApiContext, Depends(context_of)]
SecretNameInPath = Annotated[
    str,
    Path(
        description="Name of the secret, and of the environment variable that the script finds it in",
        examples=["HF_TOKEN"],
        json_schema_extra={"pattern": SECRET_NAME_PATTERN, "maxLength": LONGEST_SECRET_NAME},
    ),
]


@router.put(
    "/secrets/{name}",
    operation_id="set_secret",
    summary="Set a secret",
    responses=documented(401, 403, 409, 413, 422, 503),
)
async def put(
    name: SecretNameInPath, body: SecretRequest, request: Request, caller: Submitter, context: ContextOf
) -> Secret:
    """Store a value under a name that is fit for an environment variable (`HF_TOKEN`), in the place of an earlier
    one. It is encrypted at rest, and no request ever reads it again."""
    check_name(name)
    sealer = Sealer.of(context.settings)
    async with audited(context, request, name) as write:
        stored = await set_secret(
            write.connection, sealer, caller.project_id, name, body.value, now_ms=context.clock.now_ms()
        )
    return secret_view(stored)


@router.get("/secrets", operation_id="list_secrets", summary="List secrets", responses=documented(401, 403, 422, 503))
async def list_(caller: Reader, context: ContextOf, cursor: Cursor = None, limit: Limit = 100) -> Page[Secret]:
    """By name, without their values."""
    after = cursor_text(cursor)
    async with context.database.transaction() as connection:
        rows = await list_secrets(connection, caller.project_id, after=after, limit=limit + 1)
    return page(rows, limit, secret_view, lambda row: text_cursor(row.name))


@router.delete(
    "/secrets/{name}",
    operation_id="delete_secret",
    summary="Delete a secret",
    responses=documented(401, 403, 404, 413, 422, 503),
)
async def delete(name: SecretNameInPath, request: Request, caller: Submitter, context: ContextOf) -> Secret:
    """At once, even when unfinished jobs name it: the answer says how many. Runs that have it keep it until they end;
    those that start later fail and name it."""
    check_name(name)
    async with audited(context, request, name) as write:
        dropped = await drop_secret(write.connection, caller.project_id, name)
    return secret_view(dropped)


def secret_view(row: SecretRow) -> Secret:
    return Secret(
        name=row.name,
        created_at=instant(row.created_ms),
        changed_at=instant(row.changed_ms),
        used_by_jobs=row.used_by_jobs,
    )
