"""Which open model a name means to clients of OpenAI."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request

from allpass.wire.base import Page
from allpass.wire.model_names import LONGEST_MODEL_NAME, MODEL_NAME_PATTERN, ModelName, ModelNameRequest
from app.api.audit import audited
from app.api.auth import Owner, Reader
from app.api.context import ApiContext, context_of
from app.api.cursors import cursor_text, text_cursor
from app.api.errors import documented
from app.api.requests import Cursor, Limit
from app.api.views import page
from app.services.doors.name_models import NamedModel, check_name, list_names, name_model, reset_name

router = APIRouter(prefix="/v1", tags=["model names"])
ContextOf = Annotated[ApiContext, Depends(context_of)]
NameInPath = Annotated[
    str,
    Path(
        description="Name of a model, as clients of OpenAI send it",
        examples=["gpt-4o-mini"],
        json_schema_extra={"pattern": MODEL_NAME_PATTERN, "maxLength": LONGEST_MODEL_NAME},
    ),
]


@router.get(
    "/model-names",
    operation_id="list_model_names",
    summary="List names of models",
    responses=documented(401, 403, 422, 503),
)
async def list_(caller: Reader, context: ContextOf, cursor: Cursor = None, limit: Limit = 100) -> Page[ModelName]:
    """By name: those that are known from the start, and those that an owner has set or removed. Open models
    (`Qwen/Qwen2.5-7B-Instruct`) can be asked for without a name."""
    after = cursor_text(cursor)
    async with context.database.transaction() as connection:
        names = await list_names(connection, after=after, limit=limit + 1)
    return page(names, limit, name_view, lambda one: text_cursor(one.name))


@router.put(
    "/model-names/{name}",
    operation_id="set_model_name",
    summary="Say what a name means",
    responses=documented(401, 403, 404, 409, 413, 422, 503),
)
async def put(
    name: NameInPath, body: ModelNameRequest, request: Request, caller: Owner, context: ContextOf
) -> ModelName:
    """For all projects, from the next request on; what was submitted before keeps the model that it was made with."""
    check_name(name)
    async with audited(context, request, name) as write:
        named = await name_model(write.connection, name, body.model, now_ms=context.clock.now_ms())
    return name_view(named)


@router.delete(
    "/model-names/{name}",
    operation_id="reset_model_name",
    summary="Reset a name",
    responses=documented(401, 403, 404, 413, 422, 503),
)
async def delete(name: NameInPath, request: Request, caller: Owner, context: ContextOf) -> ModelName:
    """It means again what it means from the start, which the answer tells: nothing, for a name of the owner's own."""
    check_name(name)
    async with audited(context, request, name) as write:
        named = await reset_name(write.connection, name)
    return name_view(named)


def name_view(named: NamedModel) -> ModelName:
    return ModelName(
        name=named.name,
        model=named.model,
        source="owner" if named.is_own else "start",
        from_start=named.from_start,
    )
