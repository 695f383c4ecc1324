"""What a job leaves behind: events, log, metrics, checkpoints, artifacts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from allpass.wire.base import Page
from allpass.wire.jobs import Checkpoint, FileLink, FilePreview, JobEvent, LogPage
from app.api.auth import Reader
from app.api.context import ApiContext, context_of
from app.api.cursors import cursor_text, id_cursor, number_cursor, text_cursor
from app.api.errors import documented
from app.api.jobs import find_job
from app.api.requests import CheckpointId, Cursor, JobId, Limit, WaitS, known_id
from app.api.views import checkpoint_view, event_view, file_view, page, saved_file_view
from app.core.model.job import TERMINAL_JOB_STATES
from app.db.reading import job_records
from app.db.reading.job_records import EventRow, FileRow
from app.errors import NotFound
from app.ports.objects import content_key
from app.services.checkpoints.list_checkpoint_files import list_checkpoint_files as files_by_path
from app.services.kit.long_poll import wait_for_change
from app.services.reading.preview_file import preview_file
from app.services.reading.read_log import LogPart, read_log

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["job records"])
ContextOf = Annotated[ApiContext, Depends(context_of)]
_BIGGEST = 2**53
After = Annotated[int, Query(ge=0, le=_BIGGEST, description="The last position you have", examples=[0])]
Position = Annotated[
    str | None,
    Query(
        max_length=6000,
        description="`next_position` of the part before; left out or empty: the log's beginning",
        examples=["1.12"],
    ),
]
_READ = documented(401, 403, 404, 422, 503)
_READ_OBJECTS = documented(401, 403, 404, 422, 502, 503)


@router.get("/events", operation_id="list_events", summary="A job's events", responses=_READ)
async def get_events(
    job_id: JobId,
    caller: Reader,
    context: ContextOf,
    after: After = 0,
    cursor: Cursor = None,
    limit: Limit = 100,
    wait_s: WaitS = 0,
) -> Page[JobEvent]:
    """In order, without gaps. With `wait_s`, an empty answer is held back until there is one or the job is over.

    `next_cursor` is the last position of the page, so `cursor` and `after` say the same; `cursor` goes before.
    """
    known_id(job_id, "job", "job")
    begin = number_cursor(cursor)
    position = after if begin is None else begin

    async def read() -> tuple[list[EventRow], bool]:
        async with context.database.transaction() as connection:
            job = await find_job(connection, caller.project_id, job_id)
            rows = await job_records.events_after(connection, job_id, position, limit=limit + 1)
        return rows, job.state in TERMINAL_JOB_STATES

    rows, _ = await wait_for_change(
        context.listener,
        job_id,
        read,
        lambda found: bool(found[0]) or found[1],
        wait_s=wait_s,
        poll_s=context.settings.poll_s,
    )
    return page(rows, limit, event_view, lambda row: str(row.position))


@router.get("/logs", summary="A job's log", responses=_READ_OBJECTS)
async def get_log(
    job_id: JobId, caller: Reader, context: ContextOf, position: Position = None, wait_s: WaitS = 0
) -> LogPage:
    """The next part of the text, over all runs. Pass `next_position` back until `complete`."""
    known_id(job_id, "job", "job")

    async def read() -> LogPart:
        return await read_log(context.database, context.objects, caller.project_id, job_id, position)

    part = await wait_for_change(
        context.listener,
        job_id,
        read,
        lambda found: bool(found.text) or found.complete,
        wait_s=wait_s,
        poll_s=context.settings.poll_s,
    )
    return LogPage(text=part.text, next_position=part.next_position, complete=part.complete)


@router.get("/checkpoints", summary="A job's checkpoints", responses=_READ)
async def list_checkpoints(
    job_id: JobId, caller: Reader, context: ContextOf, cursor: Cursor = None, limit: Limit = 100
) -> Page[Checkpoint]:
    """Those that are complete, newest first."""
    before = id_cursor(cursor, "ckpt")
    async with context.database.transaction() as connection:
        await find_job(connection, caller.project_id, job_id)
        rows = await job_records.list_checkpoints(connection, job_id, before=before, limit=limit + 1)
    return page(rows, limit, checkpoint_view, lambda row: row.id)


@router.get("/checkpoints/{checkpoint_id}/files", summary="Files of a checkpoint", responses=_READ_OBJECTS)
async def list_checkpoint_files(
    job_id: JobId,
    checkpoint_id: CheckpointId,
    caller: Reader,
    context: ContextOf,
    cursor: Cursor = None,
    limit: Limit = 1000,
) -> Page[FileLink]:
    """By path, each with a signed link that expires."""
    known_id(checkpoint_id, "ckpt", "checkpoint")
    after = cursor_text(cursor)
    async with context.database.transaction() as connection:
        await find_job(connection, caller.project_id, job_id)
        if not await job_records.committed_checkpoint_exists(connection, job_id, checkpoint_id):
            raise NotFound(f"{job_id} has no checkpoint {checkpoint_id!r}")
    rows = await files_by_path(context.database, checkpoint_id, after, limit=limit + 1)
    sign = _signer(context, caller.project_id)
    return page(rows, limit, lambda file: saved_file_view(file, sign), lambda file: text_cursor(file.path))


@router.get("/artifacts", summary="A job's artifacts", responses=_READ_OBJECTS)
async def list_artifacts(
    job_id: JobId, caller: Reader, context: ContextOf, cursor: Cursor = None, limit: Limit = 1000
) -> Page[FileLink]:
    """The files that its runs left in their output directory and their working folder, by path, each with a signed link
    that expires. While it runs, what was kept so far."""
    after = cursor_text(cursor)
    async with context.database.transaction() as connection:
        await find_job(connection, caller.project_id, job_id)
        rows = await job_records.artifacts_after(connection, job_id, after, limit=limit + 1)
    return _linked(rows, limit, context, caller.project_id)


@router.get(
    "/artifacts/preview", operation_id="preview_artifact", summary="Look into an artifact", responses=_READ_OBJECTS
)
async def preview_artifact(
    job_id: JobId,
    caller: Reader,
    context: ContextOf,
    path: Annotated[
        str,
        Query(min_length=1, max_length=1000, description="As the list has it", examples=["adapter/README.md"]),
    ],
) -> FilePreview:
    """How the file begins, if that can be read; of others, what they seem to be."""
    known_id(job_id, "job", "job")
    seen = await preview_file(context.database, context.objects, caller.project_id, job_id, path)
    return FilePreview(path=path, size_bytes=seen.size_bytes, kind=seen.kind, text=seen.text, truncated=seen.truncated)


def _linked(rows: list[FileRow], limit: int, context: ApiContext, project_id: str) -> Page[FileLink]:
    sign = _signer(context, project_id)
    return page(rows, limit, lambda row: file_view(row, sign(row.sha256)), lambda row: text_cursor(row.path))


def _signer(context: ApiContext, project_id: str) -> Callable[[str], str]:
    """Makes links to stored content, each content once."""
    expires_ms = context.clock.now_ms() + context.settings.signed_url_ttl_s * 1000
    return cache(lambda sha256: context.objects.sign_get(content_key(project_id, sha256), expires_ms=expires_ms))
