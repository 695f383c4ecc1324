"""The project of the caller, and what is settled for all of its jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from allpass.wire.project import Project, ProjectUpdate
from app.api.audit import audited
from app.api.auth import Admin, Reader
from app.api.context import ApiContext, context_of
from app.api.errors import documented
from app.api.views import instant, instant_or_none
from app.db.access.projects import ProjectRow, change_project, find_project

router = APIRouter(prefix="/v1", tags=["project"])
ContextOf = Annotated[ApiContext, Depends(context_of)]


@router.get(
    "/project", operation_id="get_project", summary="Read the project", responses=documented(401, 403, 422, 503)
)
async def get(caller: Reader, context: ContextOf) -> Project:
    """The one that the API key belongs to."""
    async with context.database.transaction() as connection:
        return project_view(await find_project(connection, caller.project_id))


@router.patch(
    "/project",
    operation_id="update_project",
    summary="Change the project",
    responses=documented(401, 403, 413, 422, 503),
)
async def update(body: ProjectUpdate, request: Request, caller: Admin, context: ContextOf) -> Project:
    """Machines that are idle already are given back with the next decision, where none are to be kept."""
    async with audited(context, request, caller.project_id) as write:
        return project_view(await change_project(write.connection, caller.project_id, ahead=body.ahead))


def project_view(row: ProjectRow) -> Project:
    return Project(
        id=row.project_id,
        name=row.name,
        created_at=instant(row.created_ms),
        ahead=row.ahead,
        default_class=row.default_class.value,
        archived_at=instant_or_none(row.archived_ms),
    )
