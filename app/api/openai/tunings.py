"""`/openai/v1/fine_tuning/jobs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from app.api.audit import Write, author_of
from app.api.auth import Reader, Submitter
from app.api.context import ApiContext, context_of
from app.api.once import answer_once, first_answer
from app.api.openai.doors import Doors, doors_of
from app.api.openai.tuning_request import read_tuning
from app.api.openai.tuning_views import checkpoint_view, tuning_view
from app.api.openai.wire import ListOf, TuningCheckpoint, TuningCreate, TuningEvent, TuningJob
from app.db.connection import Connection
from app.db.doors.tunings import FineTuning, end_tuning, find_tuning, list_tunings
from app.db.reading.job_records import list_checkpoints
from app.errors import Conflict, InvalidInput, InvariantBroken, NotFound
from app.services.doors.create_tuning import create_tuning
from app.services.doors.models import resolve
from app.services.doors.tell_tuning import events_before, read_standing, read_standings
from app.services.jobs.cancel_job import cancel_job
from app.services.jobs.pause_job import pause_job
from app.services.jobs.resume_job import resume_job

router = APIRouter(prefix="/openai/v1/fine_tuning", include_in_schema=False)
ContextOf = Annotated[ApiContext, Depends(context_of)]
DoorsOf = Annotated[Doors, Depends(doors_of)]
After = Annotated[str | None, Query(max_length=100)]
Limit = Annotated[int, Query(ge=1, le=1000)]
_CKPT = "ftckpt_"


@router.post("/jobs", response_model=TuningJob)
async def create(
    body: TuningCreate, request: Request, caller: Submitter, context: ContextOf, doors: DoorsOf
) -> Response:
    """Accepted and durable when this answers; its rows are packed after that."""
    first = await first_answer(context, request)
    if first is not None:
        return first
    now_ms = context.clock.now_ms()
    asked = read_tuning(body, now_ms=now_ms)
    meant = await resolve(context.database, caller.project_id, body.model)
    author = author_of(request.scope)
    if author is None:
        raise InvariantBroken("a caller that was let in is the author")
    made: list[FineTuning] = []

    async def act(write: Write) -> TuningJob:
        tuning = await create_tuning(write.connection, context.ids, author, asked, meant, now_ms=now_ms)
        write.object_id = tuning.id
        made.append(tuning)
        return tuning_view(tuning, None)

    answer = await answer_once(context, request, act)
    for tuning in made:
        doors.advance(tuning)
    return answer


@router.get("/jobs")
async def list_jobs(
    request: Request, caller: Reader, context: ContextOf, after: After = None, limit: Limit = 20
) -> ListOf[TuningJob]:
    """Newest first. `metadata[key]=value` filters, as often as it is given; `metadata=null`: those without any."""
    wanted, has_none = _metadata(request.query_params)
    async with context.database.transaction() as connection:
        found = await list_tunings(
            connection, caller.project_id, metadata=wanted, has_none=has_none, after=after, limit=limit + 1
        )
        standings = await read_standings(connection, found[:limit], now_ms=context.clock.now_ms())
    shown = [tuning_view(tuning, standings.get(tuning.id)) for tuning in found[:limit]]
    return ListOf[TuningJob](
        data=shown,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=len(found) > limit,
    )


@router.get("/jobs/{tuning_id}")
async def retrieve(tuning_id: str, caller: Reader, context: ContextOf) -> TuningJob:
    async with context.database.transaction() as connection:
        return await _read(connection, context, caller.project_id, tuning_id)


@router.post("/jobs/{tuning_id}/cancel", response_model=TuningJob)
async def cancel(tuning_id: str, request: Request, caller: Submitter, context: ContextOf) -> Response:
    async def act(write: Write) -> TuningJob:
        connection, now_ms = write.connection, context.clock.now_ms()
        tuning = await _find(connection, caller.project_id, tuning_id)
        if tuning.job_id is None:
            ended = await end_tuning(connection, tuning.id, error=None, now_ms=now_ms)
            tuning = await _find(connection, caller.project_id, tuning_id)
            if not ended and tuning.job_id is None and tuning.error is not None:
                raise Conflict(f"{tuning_id} has failed: there is nothing left to cancel", param="fine_tuning_job_id")
        if tuning.job_id is not None:
            await cancel_job(connection, context.ids, caller.project_id, tuning.job_id, now_ms=now_ms)
        return await _read(connection, context, caller.project_id, tuning_id)

    return await answer_once(context, request, act, object_id=tuning_id[:100])


@router.post("/jobs/{tuning_id}/pause", response_model=TuningJob)
async def pause(tuning_id: str, request: Request, caller: Submitter, context: ContextOf) -> Response:
    """OpenAI has no word for a paused job: it is `queued` until it is resumed, and its events say that it is paused."""

    async def act(write: Write) -> TuningJob:
        job_id = await _job_of(write.connection, caller.project_id, tuning_id)
        await pause_job(write.connection, context.ids, caller.project_id, job_id, now_ms=context.clock.now_ms())
        return await _read(write.connection, context, caller.project_id, tuning_id)

    return await answer_once(context, request, act, object_id=tuning_id[:100])


@router.post("/jobs/{tuning_id}/resume", response_model=TuningJob)
async def resume(tuning_id: str, request: Request, caller: Submitter, context: ContextOf) -> Response:
    async def act(write: Write) -> TuningJob:
        job_id = await _job_of(write.connection, caller.project_id, tuning_id)
        await resume_job(write.connection, caller.project_id, job_id, now_ms=context.clock.now_ms())
        return await _read(write.connection, context, caller.project_id, tuning_id)

    return await answer_once(context, request, act, object_id=tuning_id[:100])


@router.get("/jobs/{tuning_id}/events")
async def list_events(
    tuning_id: str, caller: Reader, context: ContextOf, after: After = None, limit: Limit = 20
) -> ListOf[TuningEvent]:
    """Newest first: what happened to the job, and its metrics."""
    async with context.database.transaction() as connection:
        tuning = await _find(connection, caller.project_id, tuning_id)
        found = await events_before(connection, tuning, after, limit=limit + 1)
    shown = [
        TuningEvent(
            id=one.id,
            created_at=one.at_ms // 1000,
            level=one.level,
            message=one.message,
            data=one.data,
            type="message" if one.data is None else "metrics",
        )
        for one in found[:limit]
    ]
    return ListOf[TuningEvent](data=shown, has_more=len(found) > limit)


@router.get("/jobs/{tuning_id}/checkpoints")
async def list_saves(
    tuning_id: str, caller: Reader, context: ContextOf, after: After = None, limit: Limit = 10
) -> ListOf[TuningCheckpoint]:
    """Newest first."""
    async with context.database.transaction() as connection:
        tuning = await _find(connection, caller.project_id, tuning_id)
        before = None if after is None else f"ckpt_{after.removeprefix(_CKPT)}"
        found = []
        if tuning.job_id is not None:
            found = await list_checkpoints(connection, tuning.job_id, before=before, limit=limit + 1)
    shown = [checkpoint_view(tuning, one) for one in found[:limit]]
    return ListOf[TuningCheckpoint](
        data=shown,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=len(found) > limit,
    )


@router.api_route("/checkpoints/{rest:path}", methods=["GET", "POST", "DELETE"])
@router.api_route("/alpha/graders/{rest:path}", methods=["POST"])
async def refused(rest: str, caller: Reader) -> None:
    """Known there, refused here."""
    raise InvalidInput(
        f"{rest[:100]}: sharing checkpoints between projects and running graders are not offered by this server; "
        "projects share nothing here, and `supervised` and `dpo` need no grader",
        code="unsupported",
    )


async def _find(connection: Connection, project_id: str, tuning_id: str) -> FineTuning:
    tuning = await find_tuning(connection, project_id, tuning_id)
    if tuning is None:
        raise NotFound(
            f"Could not find fine tune: {tuning_id[:100]}", param="fine_tuning_job_id", code="fine_tune_not_found"
        )
    return tuning


async def _job_of(connection: Connection, project_id: str, tuning_id: str) -> str:
    tuning = await _find(connection, project_id, tuning_id)
    if tuning.job_id is None:
        state = "over" if tuning.ended_ms is not None else "still being validated; try again in a moment"
        raise Conflict(f"{tuning_id} is {state}", param="fine_tuning_job_id")
    return tuning.job_id


async def _read(connection: Connection, context: ApiContext, project_id: str, tuning_id: str) -> TuningJob:
    tuning = await _find(connection, project_id, tuning_id)
    return tuning_view(tuning, await read_standing(connection, tuning, now_ms=context.clock.now_ms()))


def _metadata(query: Mapping[str, str]) -> tuple[dict[str, str], bool]:
    wanted = {
        name[len("metadata[") : -1]: value
        for name, value in query.items()
        if name.startswith("metadata[") and name.endswith("]")
    }
    if len(wanted) > 16:
        raise InvalidInput("metadata: at most 16 pairs", param="metadata")
    return wanted, query.get("metadata") == "null"
