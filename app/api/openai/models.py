"""`/openai/v1/models`: names that mean something here, and what was fine-tuned."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from app.api.audit import audited
from app.api.auth import Reader, Submitter
from app.api.context import ApiContext, context_of
from app.api.openai.wire import ListOf, ModelDeleted, ModelObject
from app.core.model.job import JobState
from app.db.connection import Connection
from app.db.doors.tunings import delete_model, find_by_model, tunings_with_results
from app.db.jobs.reads import find_state
from app.errors import Forbidden
from app.services.doors.models import OPEN_MODEL, TUNED, names_in_use, no_model

router = APIRouter(prefix="/openai/v1/models", include_in_schema=False)
ContextOf = Annotated[ApiContext, Depends(context_of)]
_MOST_LISTED = 1000
_OWNER = "allpass"


@router.get("")
async def list_models(caller: Reader, context: ContextOf) -> ListOf[ModelObject]:
    """Fine-tuned ones first, the newest of them first."""
    names = await names_in_use(context.database)
    found = []
    async with context.database.transaction() as connection:
        for tuning, _ in await tunings_with_results(connection, caller.project_id, limit=_MOST_LISTED):
            found.append(_view(tuning.fine_tuned_model, tuning.created_ms, caller.project_id))
    return ListOf[ModelObject](data=[*found, *(_view(name, 0, _OWNER) for name in names)])


@router.get("/{model:path}")
async def get_model(model: str, caller: Reader, context: ContextOf) -> ModelObject:
    if model.startswith(TUNED):
        async with context.database.transaction() as connection:
            tuning = await find_by_model(connection, caller.project_id, model)
            if tuning is not None and await _succeeded(connection, caller.project_id, tuning.job_id):
                return _view(model, tuning.created_ms, caller.project_id)
        raise no_model(model)
    if model in await names_in_use(context.database) or OPEN_MODEL.match(model):
        return _view(model, 0, _OWNER)
    raise no_model(model)


@router.delete("/{model:path}")
async def delete(model: str, request: Request, caller: Submitter, context: ContextOf) -> ModelDeleted:
    """The name opens nothing any more; what its job has left is kept with the job."""
    if not model.startswith(TUNED) and (model in await names_in_use(context.database) or OPEN_MODEL.match(model)):
        raise Forbidden(f"model: {model[:100]} is no fine-tuned model of this project", param="model")
    async with audited(context, request, model[:100]) as write:
        tuning = await find_by_model(write.connection, caller.project_id, model)
        if tuning is None or not await _succeeded(write.connection, caller.project_id, tuning.job_id):
            raise no_model(model)
        await delete_model(write.connection, tuning.id, now_ms=context.clock.now_ms())
    return ModelDeleted(id=model)


async def _succeeded(connection: Connection, project_id: str, job_id: str | None) -> bool:
    return job_id is not None and await find_state(connection, project_id, job_id) is JobState.SUCCEEDED


def _view(name: str, created_ms: int, owner: str) -> ModelObject:
    return ModelObject(id=name, created=created_ms // 1000, owned_by=owner)
