"""Images that providers build before they run them: how far each is, and having one built ahead."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from allpass.wire.providers import ImageBuild, ImageBuilds, ImageRequest
from app.api.audit import Write
from app.api.auth import Admin
from app.api.context import ApiContext, context_of
from app.api.errors import documented
from app.api.once import answer_once
from app.api.requests import IdempotencyHeader
from app.api.views import instant, instant_or_none
from app.db.offers import image_builds as rows
from app.db.offers.image_builds import builds_now
from app.services.offers.prepare_image import prepare_image

router = APIRouter(prefix="/v1/providers", tags=["offers"])
ContextOf = Annotated[ApiContext, Depends(context_of)]


@router.get(
    "/images",
    operation_id="list_image_builds",
    summary="List builds of images",
    responses=documented(401, 403, 414, 422, 503),
)
async def list_(
    caller: Admin,
    context: ContextOf,
    image: Annotated[
        str | None,
        Query(max_length=rows.MOST_CHARS, description="Only this one", examples=["docker.io/lab/train:7"]),
    ] = None,
) -> ImageBuilds:
    """Of every provider that builds an image before machines can run it. Those that fetch it as they start are not
    here."""
    async with context.database.transaction() as connection:
        return ImageBuilds(images=[build_view(one) for one in await builds_now(connection, image=image)])


@router.post(
    "/images",
    operation_id="prepare_image",
    summary="Build an image ahead",
    response_model=ImageBuilds,
    responses=documented(401, 403, 409, 413, 422, 503),
)
async def prepare(
    body: ImageRequest, request: Request, caller: Admin, context: ContextOf, idempotency_key: IdempotencyHeader = None
) -> Response:
    """Begins within seconds and takes minutes: read it again to see how far it is. One that failed is tried again; one
    that is ready stays so. Rents no machine."""

    async def act(write: Write) -> ImageBuilds:
        found = await prepare_image(write.connection, body.image, body.provider, now_ms=context.clock.now_ms())
        return ImageBuilds(images=[build_view(one) for one in found])

    return await answer_once(context, request, act)


def build_view(build: rows.ImageBuild) -> ImageBuild:
    return ImageBuild(
        provider=build.provider,
        image=build.image,
        state=build.state.value,
        since=instant(build.since_ms),
        ready_at=instant_or_none(build.ready_ms),
        took_ms=build.took_ms,
        failures=build.failures,
        why=build.why,
        log=build.log,
        again_at=instant_or_none(build.again_ms),
    )
