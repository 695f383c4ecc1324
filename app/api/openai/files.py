"""`/openai/v1/files`."""

from __future__ import annotations

from typing import Annotated, Literal, get_args
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import ValidationError

from app.api.audit import audited
from app.api.auth import Reader, Submitter
from app.api.context import ApiContext, context_of
from app.api.openai.bodies import Form, sent_form
from app.api.openai.doors import Doors, doors_of
from app.api.openai.results import is_results, list_results, read_results, results_file
from app.api.openai.wire import ExpiresAfter, FileDeleted, FileObject, ListOf, Purpose
from app.db.doors import files as rows
from app.db.doors.files import DoorFile
from app.errors import InvalidInput, NotFound

router = APIRouter(prefix="/openai/v1/files", include_in_schema=False)
ContextOf = Annotated[ApiContext, Depends(context_of)]
DoorsOf = Annotated[Doors, Depends(doors_of)]
RESULTS = "fine-tune-results"
_PURPOSES = get_args(Purpose)


@router.post("")
async def create_file(request: Request, caller: Submitter, context: ContextOf, doors: DoorsOf) -> FileObject:
    async with sent_form(request, "file", most_bytes=context.settings.openai_max_file_bytes) as form:
        purpose, life_s = _checked(form)
        async with doors.turns:
            content = await form.content()
            if not content:
                raise InvalidInput("file: the file is empty", param="file")
            file = await doors.files.store(caller.project_id, form.filename, purpose, content, life_s=life_s)
    return file_view(file)


@router.get("")
async def list_files(
    caller: Reader,
    context: ContextOf,
    purpose: str | None = None,
    after: Annotated[str | None, Query(max_length=100)] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
) -> ListOf[FileObject]:
    """Files that were sent, and of each fine-tuning that succeeded the one with its metrics."""
    now_ms = context.clock.now_ms()
    found: list[FileObject] = []
    async with context.database.transaction() as connection:
        if purpose != RESULTS:
            stored = await rows.list_files(
                connection,
                caller.project_id,
                purpose=purpose,
                after=after,
                ascending=order == "asc",
                limit=limit + 1,
                now_ms=now_ms,
            )
            found += [file_view(file) for file in stored]
        if purpose in (None, RESULTS):
            found += await list_results(connection, caller.project_id)
    found.sort(key=lambda file: file.id, reverse=order == "desc")
    if after is not None:
        found = [file for file in found if (file.id > after if order == "asc" else file.id < after)]
    return listed(found, limit)


@router.get("/{file_id}")
async def get_file(file_id: str, caller: Reader, context: ContextOf, doors: DoorsOf) -> FileObject:
    if is_results(file_id):
        async with context.database.transaction() as connection:
            found = await results_file(connection, caller.project_id, file_id)
        found.bytes = len(await read_results(context.database, caller.project_id, file_id))
        return found
    return file_view(await doors.files.find(caller.project_id, file_id))


@router.delete("/{file_id}")
async def delete_file(file_id: str, request: Request, caller: Submitter, context: ContextOf) -> FileDeleted:
    """A job that has read it goes on; one that has not yet fails, and says so."""
    async with audited(context, request, file_id[:100]) as write:
        gone = await rows.set_deleted(write.connection, caller.project_id, file_id, now_ms=context.clock.now_ms())
        if gone is None:
            raise NotFound(f"No such File object: {file_id[:100]}", param="id")
    return FileDeleted(id=file_id)


@router.get("/{file_id}/content")
async def get_content(file_id: str, caller: Reader, context: ContextOf, doors: DoorsOf) -> Response:
    """Whatever a user has sent is nothing that a browser may run: always something to be saved."""
    if is_results(file_id):
        name, content = f"{file_id}.csv", await read_results(context.database, caller.project_id, file_id)
    else:
        file = await doors.files.find(caller.project_id, file_id)
        name, content = file.filename, await doors.files.content(file)
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name)}",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(content, headers=headers, media_type="application/octet-stream")


def file_view(file: DoorFile) -> FileObject:
    report = file.report or {}
    wrong = report.get("message")
    return FileObject(
        id=file.id,
        bytes=file.size_bytes,
        created_at=file.created_ms // 1000,
        expires_at=None if file.expires_ms is None else file.expires_ms // 1000,
        filename=file.filename,
        purpose=file.purpose,
        status="processed" if wrong is None else "error",
        status_details=wrong,
    )


def listed(found: list[FileObject], limit: int) -> ListOf[FileObject]:
    shown = found[:limit]
    return ListOf[FileObject](
        data=shown,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=len(found) > limit,
    )


def _checked(form: Form) -> tuple[str, int | None]:
    """The purpose, and how long the file is kept in seconds (None: until it is deleted). Raises InvalidInput."""
    purpose = form.fields.get("purpose", "")
    if purpose not in _PURPOSES:
        raise InvalidInput(f"purpose: {purpose!r} is not one of {', '.join(_PURPOSES)}", param="purpose")
    told = {name: form.fields.get(f"expires_after[{name}]") for name in ("anchor", "seconds")}
    if told == {"anchor": None, "seconds": None}:
        return purpose, None
    try:
        return purpose, ExpiresAfter.model_validate(told).seconds
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        param = f"expires_after.{problem['loc'][0]}"
        raise InvalidInput(f"{param}: {problem['input']!r}: {problem['msg']}", param=param) from None
