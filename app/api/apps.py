"""Bundles and apps."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from allpass.wire.apps import App, AppRequest, BundleUpload, BundleUploadRequest
from allpass.wire.base import Page
from app.api.audit import Write
from app.api.auth import Reader, Submitter
from app.api.context import ApiContext, context_of
from app.api.cursors import id_cursor
from app.api.errors import documented
from app.api.once import answer_once, first_answer
from app.api.requests import AppId, Cursor, IdempotencyHeader, Limit, known_id
from app.api.views import app_view, page
from app.db.apps import versions as rows
from app.db.checkpoints.objects import claim_objects
from app.errors import NotFound
from app.services.apps.offer_bundle_upload import offer_bundle_upload
from app.services.apps.register_app import describe_content, register_app

router = APIRouter(prefix="/v1", tags=["apps"])
ContextOf = Annotated[ApiContext, Depends(context_of)]


@router.post(
    "/bundles",
    operation_id="offer_bundle",
    summary="Ask where to put a code bundle",
    response_model=BundleUpload,
    responses=documented(401, 403, 409, 413, 422, 502, 503),
)
async def offer_bundle(
    body: BundleUploadRequest,
    request: Request,
    caller: Submitter,
    context: ContextOf,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """PUT the bytes to `upload_url`, unless it is null: then they are stored already.

    The URL is good for a quarter of an hour, unless the service is set up otherwise. Under its `Idempotency-Key` the
    request gets the same URL until then, and a new one afterwards.
    """
    first = await first_answer(context, request)
    if first is not None:
        return first
    expires_ms = context.clock.now_ms() + context.settings.signed_url_ttl_s * 1000
    url = await offer_bundle_upload(
        context.objects,
        context.settings,
        caller.project_id,
        sha256=body.sha256,
        size_bytes=body.size_bytes,
        expires_ms=expires_ms,
    )

    async def act(write: Write) -> BundleUpload:
        return BundleUpload(sha256=body.sha256, upload_url=url)

    return await answer_once(context, request, act, object_id=body.sha256, until_ms=expires_ms)


@router.post(
    "/apps",
    operation_id="register_app",
    summary="Register an app",
    status_code=201,
    response_model=App,
    responses={
        **documented(401, 403, 409, 413, 422, 502, 503),
        200: {"model": App, "description": "The newest version has this content already"},
    },
)
async def register(
    body: AppRequest, request: Request, caller: Submitter, context: ContextOf, idempotency_key: IdempotencyHeader = None
) -> Response:
    """The content of the newest version again gives that version (200); any change gives the next one (201)."""
    first = await first_answer(context, request)
    if first is not None:
        return first
    async with context.database.transaction() as connection:  # before the look: what is found then, stays
        await claim_objects(connection, caller.project_id, [body.bundle_sha256], now_ms=context.clock.now_ms())
    content = await describe_content(context.objects, request.app.state.bundles, caller.project_id, body)
    touched: list[str] = []

    async def act(write: Write) -> App:
        registered = await register_app(
            write.connection, context.ids, caller.project_id, body, content, now_ms=context.clock.now_ms()
        )
        write.object_id, write.status = registered.app.app_id, registered.status
        touched.append(registered.app.app_id)
        return app_view(registered.app)

    answer = await answer_once(context, request, act)
    for app_id in touched:
        request.app.state.submitter.apps.forget(caller.project_id, app_id)
    return answer


@router.get("/apps", summary="List apps", responses=documented(401, 403, 422, 503))
async def list_apps(caller: Reader, context: ContextOf, cursor: Cursor = None, limit: Limit = 100) -> Page[App]:
    """Newest first, each with its newest version."""
    before = id_cursor(cursor, "app")
    async with context.database.transaction() as connection:
        found = await rows.list_apps(connection, caller.project_id, before=before, limit=limit + 1)
    return page(found, limit, app_view, lambda row: row.app_id)


@router.get("/apps/{app_id}", summary="Get an app", responses=documented(401, 403, 404, 422, 503))
async def get_app(app_id: AppId, caller: Reader, context: ContextOf) -> App:
    """The app with its newest version."""
    known_id(app_id, "app", "app")
    async with context.database.transaction() as connection:
        found = await rows.find_version(connection, caller.project_id, app_id)
    if found is None:
        raise NotFound(f"there is no app {app_id!r} in this project")
    return app_view(found)
