"""The projects of the installation, for those who own it. Nothing of what is in them is told here."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from allpass.wire.access import CreatedKey, KeyRequest
from allpass.wire.base import Name, Page
from allpass.wire.project import CreatedProject, Project, ProjectChange, ProjectRequest
from app.api.audit import Write, audited, author_of
from app.api.auth import Owner
from app.api.context import ApiContext, context_of
from app.api.cursors import id_cursor
from app.api.errors import documented
from app.api.keys import created_view, expiry_of
from app.api.once import answer_once
from app.api.project import project_view
from app.api.requests import Cursor, IdempotencyHeader, Limit, ProjectId
from app.api.views import page
from app.core.model.job import PriorityClass
from app.db.access.audit import add_entry
from app.db.access.projects import list_projects
from app.errors import Conflict
from app.services.access.change_projects import (
    close_project,
    create_project,
    held_project,
    reopen_project,
    settle_default_class,
)
from app.services.access.issue_key import CREATED, issue_key

router = APIRouter(prefix="/v1", tags=["projects"])
ContextOf = Annotated[ApiContext, Depends(context_of)]


@router.post(
    "/projects",
    operation_id="create_project",
    summary="Create a project",
    status_code=CREATED,
    response_model=CreatedProject,
    responses=documented(401, 403, 409, 413, 422, 503),
)
async def create(
    body: ProjectRequest, request: Request, caller: Owner, context: ContextOf, idempotency_key: IdempotencyHeader = None
) -> Response:
    """With its first API key, which can make others. It sees nothing of other projects, and they nothing of it."""

    async def act(write: Write) -> CreatedProject:
        made = await create_project(write.connection, caller, body.name, clock=context.clock, ids=context.ids)
        write.object_id = made.project.project_id
        await _note_there(write, request, made.project.project_id, context)
        return CreatedProject(**project_view(made.project).model_dump(), key=created_view(made.key))

    return await answer_once(context, request, act, status=CREATED)


@router.get(
    "/projects", operation_id="list_projects", summary="List projects", responses=documented(401, 403, 422, 503)
)
async def list_(
    caller: Owner,
    context: ContextOf,
    cursor: Cursor = None,
    limit: Limit = 100,
    name: Annotated[Name | None, Query(description="Only the project of this name", examples=["vision"])] = None,
) -> Page[Project]:
    """Newest first, archived ones too."""
    before = id_cursor(cursor, "proj")
    async with context.database.transaction() as connection:
        found = await list_projects(connection, name=name, before=before, limit=limit + 1)
    return page(found, limit, project_view, lambda row: row.project_id)


@router.patch(
    "/projects/{project_id}",
    operation_id="change_project",
    summary="Change a project",
    responses=documented(401, 403, 404, 413, 422, 503),
)
async def change(
    project_id: ProjectId, body: ProjectChange, request: Request, caller: Owner, context: ContextOf
) -> Project:
    """For the jobs that are submitted from now on and say nothing else; those that there are stay as they are."""
    async with audited(context, request, project_id) as write:
        changed = await settle_default_class(write.connection, project_id, PriorityClass(body.default_class))
        await _note_there(write, request, project_id, context)
        return project_view(changed)


@router.post(
    "/projects/{project_id}/archive",
    operation_id="archive_project",
    summary="Archive a project",
    response_model=Project,
    responses=documented(401, 403, 404, 409, 413, 422, 503),
)
async def archive(
    project_id: ProjectId,
    request: Request,
    caller: Owner,
    context: ContextOf,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Its keys open nothing any more (403, `project_archived`): here at once, in other processes of the service within
    5 seconds. What it has stored stays. All its jobs must be over (409): a job that is paused is not."""

    async def act(write: Write) -> Project:
        closed = await close_project(write.connection, project_id, now_ms=context.clock.now_ms())
        await _note_there(write, request, project_id, context)
        return project_view(closed)

    answer = await answer_once(context, request, act, object_id=project_id)
    request.app.state.authenticator.forget_project(project_id)
    return answer


@router.post(
    "/projects/{project_id}/restore",
    operation_id="restore_project",
    summary="Restore an archived project",
    response_model=Project,
    responses=documented(401, 403, 404, 409, 413, 422, 503),
)
async def restore(
    project_id: ProjectId,
    request: Request,
    caller: Owner,
    context: ContextOf,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """With all that it had: the keys that were not revoked open it again."""

    async def act(write: Write) -> Project:
        opened = await reopen_project(write.connection, project_id)
        await _note_there(write, request, project_id, context)
        return project_view(opened)

    return await answer_once(context, request, act, object_id=project_id)


@router.post(
    "/projects/{project_id}/keys",
    operation_id="create_project_key",
    summary="Create an API key of another project",
    status_code=CREATED,
    response_model=CreatedKey,
    responses=documented(401, 403, 404, 409, 413, 422, 503),
)
async def create_key(
    project_id: ProjectId,
    body: KeyRequest,
    request: Request,
    caller: Owner,
    context: ContextOf,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """For who has lost theirs, or for an owner who has to look into the project: its audit log tells of it."""

    async def act(write: Write) -> CreatedKey:
        project = await held_project(write.connection, project_id)
        if project.archived_ms is not None:
            raise Conflict(f"{project.name} is archived: a key of it would open nothing; restore it first")
        issued = await issue_key(
            write.connection,
            caller,
            body.name,
            body.scopes,
            expires_ms=expiry_of(body),
            clock=context.clock,
            ids=context.ids,
            project_id=project_id,
        )
        write.object_id = issued.facts.key_id
        await _note_there(write, request, project_id, context)
        return created_view(issued)

    return await answer_once(context, request, act, status=CREATED)


async def _note_there(write: Write, request: Request, project_id: str, context: ApiContext) -> None:
    """In the audit log of the project as well, whose members do not see that of the owner's."""
    author = author_of(request.scope)
    if author is not None and author.project_id != project_id:
        there = replace(author, project_id=project_id)
        await add_entry(write.connection, there, write.object_id, write.status, now_ms=context.clock.now_ms())
