"""Bundles and apps."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from allpass.wire.apps import App, AppRequest, BundleUpload, BundleUploadRequest
from allpass.wire.base import Page
from app.api.audit import OBJECT
from app.api.auth import Reader, Submitter
from app.api.errors import documented
from app.api.parts import Parts, parts_of
from app.api.requests import Cursor, IdempotencyHeader, Limit, id_cursor, known_id, request_key
from app.api.views import app_view, page
from app.db import apps as rows
from app.errors import NotFound
from app.services.offer_bundle_upload import offer_bundle_upload
from app.services.register_app import register_app

router = APIRouter(prefix="/v1", tags=["apps"])
PartsOf = Annotated[Parts, Depends(parts_of)]


@router.post("/bundles", summary="Ask where to put a code bundle", responses=documented(401, 403, 413, 422, 502, 503))
async def offer_bundle(body: BundleUploadRequest, caller: Submitter, parts: PartsOf) -> BundleUpload:
    """PUT the bytes to `upload_url`, unless it is null: then they are stored already."""
    url = await offer_bundle_upload(
        parts.objects,
        parts.settings,
        parts.clock,
        caller.project_id,
        sha256=body.sha256,
        size_bytes=body.size_bytes,
    )
    return BundleUpload(sha256=body.sha256, upload_url=url)


@router.post(
    "/apps",
    summary="Register an app",
    status_code=201,
    responses={
        **documented(401, 403, 409, 413, 422, 502, 503),
        200: {"model": App, "description": "The newest version has this content already"},
    },
)
async def register(
    body: AppRequest,
    request: Request,
    response: Response,
    caller: Submitter,
    parts: PartsOf,
    idempotency_key: IdempotencyHeader = None,
) -> App:
    """The content of the newest version again gives that version (200); any change gives the next one (201)."""
    key = request_key(request.scope, "POST /v1/apps")
    registered = await register_app(parts.database, parts.objects, parts.clock, parts.ids, caller.project_id, body, key)
    response.status_code = registered.status
    request.scope[OBJECT] = registered.app.app_id
    request.app.state.submitter.apps.forget(caller.project_id, registered.app.app_id)
    return app_view(registered.app)


@router.get("/apps", summary="List apps", responses=documented(401, 403, 422, 503))
async def list_apps(caller: Reader, parts: PartsOf, cursor: Cursor = None, limit: Limit = 100) -> Page[App]:
    """Newest first, each with its newest version."""
    before = id_cursor(cursor, "app")
    async with parts.database.transaction() as connection:
        found = await rows.list_apps(connection, caller.project_id, before=before, limit=limit + 1)
    return page(found, limit, app_view, lambda row: row.app_id)


@router.get("/apps/{app_id}", summary="Get an app", responses=documented(401, 403, 404, 422, 503))
async def get_app(app_id: str, caller: Reader, parts: PartsOf) -> App:
    """The app with its newest version."""
    known_id(app_id, "app", "app")
    async with parts.database.transaction() as connection:
        found = await rows.find_version(connection, caller.project_id, app_id)
    if found is None:
        raise NotFound(f"there is no app {app_id!r} in this project")
    return app_view(found)
