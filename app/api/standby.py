"""Lending a job's GPUs for a while."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from allpass.wire.standby import Standby, StandbyRequest, Standbys, StandbyState, Window, WindowRequest, Windows
from app.api.audit import Write, audited
from app.api.auth import Reader, Submitter
from app.api.context import ApiContext, context_of
from app.api.errors import documented
from app.api.jobs import find_job
from app.api.once import answer_once
from app.api.requests import IdempotencyHeader, JobId, WindowId, known_id
from app.api.views import instant, instant_or_none
from app.core.spot_share import FULL
from app.core.standby_windows import written_minute
from app.db.connection import Connection
from app.db.standby.windows import WindowRow, windows_of
from app.services.reading.estimate_finish import estimate_one
from app.services.standby.begin_standby import begin_standby, read_until
from app.services.standby.follow_standby import end_standby
from app.services.standby.repeat_standby import end_window, repeat_standby
from app.services.standby.show_standby import ShownStandby, show_standbys

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["jobs"])
windows_router = APIRouter(prefix="/v1/standby-windows", tags=["jobs"])
ContextOf = Annotated[ApiContext, Depends(context_of)]
_WRITE = documented(401, 403, 404, 409, 413, 422, 503)


@router.post(
    "/standby", operation_id="begin_standby", summary="Lend a job's GPUs", response_model=Standby, responses=_WRITE
)
async def begin(
    job_id: JobId,
    body: StandbyRequest,
    request: Request,
    caller: Submitter,
    context: ContextOf,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """The job saves and leaves its machine, which stays with its folder and environment. Its GPUs go to spot jobs until
    the end of the window, or until it is called back; then these save and leave, and it goes on where it left.

    For a job that stands by already this changes its window. A conflict for one that does not run, or is called back;
    as `not_lendable` where its GPUs cannot be lent: the message says why, and what would have to change.
    """
    known_id(job_id, "job", "job")
    now_ms = context.clock.now_ms()

    async def act(write: Write) -> Standby:
        until_ms = read_until(body.until, now_ms)
        await begin_standby(
            write.connection,
            context.ids,
            caller.project_id,
            job_id,
            until_ms=until_ms,
            lose_steps=body.lose_steps,
            now_ms=now_ms,
        )
        return await _newest(write.connection, caller.project_id, job_id, now_ms=now_ms)

    return await answer_once(context, request, act, object_id=job_id)


@router.post(
    "/standby/end", operation_id="end_standby", summary="Call a job back", response_model=Standby, responses=_WRITE
)
async def end(
    job_id: JobId, request: Request, caller: Submitter, context: ContextOf, idempotency_key: IdempotencyHeader = None
) -> Response:
    """Before its window is over. Spot jobs on its GPUs save and leave within the grace of its pool, and it goes on. One
    that is called back already stays as it is; a conflict for a job that does not stand by."""
    known_id(job_id, "job", "job")
    now_ms = context.clock.now_ms()

    async def act(write: Write) -> Standby:
        await end_standby(write.connection, caller.project_id, job_id, now_ms=now_ms)
        return await _newest(write.connection, caller.project_id, job_id, now_ms=now_ms)

    return await answer_once(context, request, act, object_id=job_id)


@router.get(
    "/standbys",
    operation_id="list_standbys",
    summary="When a job stood by",
    responses=documented(401, 403, 404, 422, 503),
)
async def standbys(job_id: JobId, caller: Reader, context: ContextOf) -> Standbys:
    """With what was paid for it, and what was not. At most 100, newest first."""
    async with context.database.transaction() as connection:
        await find_job(connection, caller.project_id, job_id)
        shown = await show_standbys(connection, job_id)
    return Standbys(items=[_view(one) for one in shown])


async def _newest(connection: Connection, project_id: str, job_id: str, *, now_ms: int) -> Standby:
    job = await find_job(connection, project_id, job_id)
    (shown,) = await show_standbys(connection, job_id, newest=1)
    finish = await estimate_one(connection, job, now_ms=now_ms)
    slack_ms = None
    if finish is not None and shown.row.called_ms is None:
        slack_ms = job.deadline_ms - finish.at_ms - max(0, shown.row.until_ms - now_ms)
    return _view(shown, slack_ms)


def _view(shown: ShownStandby, slack_ms: int | None = None) -> Standby:
    row = shown.row
    return Standby(
        id=row.standby_id,
        job_id=row.job_id,
        state=_state(shown),
        gpus=row.gpus,
        used_gpus=shown.used,
        asked_at=instant(row.asked_ms),
        until=instant(row.until_ms),
        left_at=instant_or_none(row.left_ms),
        called_at=instant_or_none(row.called_ms),
        back_at=instant_or_none(row.back_ms),
        ended_at=instant_or_none(row.ended_ms),
        why=row.ended_why or row.over_why or row.called_why,
        rebate_share=row.rebate_parts / FULL,
        paid=shown.paid,
        rebate=shown.rebate,
        price_per_hour=shown.hourly,
        slack_ms=slack_ms,
    )


def _state(shown: ShownStandby) -> StandbyState:
    row = shown.row
    if row.ended_ms is not None:
        return "over"
    if row.over_why is not None:
        return "ending"
    if row.left_ms is None:
        return "leaving"
    return "lent" if row.called_ms is None else "called_back"


@router.post(
    "/standby/windows",
    operation_id="repeat_standby",
    summary="Lend a job's GPUs again and again",
    status_code=201,
    response_model=Window,
    responses=_WRITE,
)
async def repeat(
    job_id: JobId,
    body: WindowRequest,
    request: Request,
    caller: Submitter,
    context: ContextOf,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """The job stands by in these hours whenever it runs: also for what is left of those that are open now. Where it
    does not run as they begin, or its GPUs cannot be lent, it is tried again each minute while they last; its events
    say why. Calling it back (`POST .../standby/end`) ends that one window. The same hours again are the same window.
    """
    known_id(job_id, "job", "job")
    now_ms = context.clock.now_ms()

    async def act(write: Write) -> Window:
        row = await repeat_standby(
            write.connection,
            context.ids,
            caller.project_id,
            job_id,
            days=body.days,
            from_minute=_minute(body.begins),
            until_minute=_minute(body.ends),
            zone=body.zone,
            lose_steps=body.lose_steps,
            now_ms=now_ms,
        )
        return _window_view(row)

    return await answer_once(context, request, act, object_id=job_id, status=201)


@router.get(
    "/standby/windows",
    operation_id="list_standby_windows",
    summary="When a job stands by again and again",
    responses=documented(401, 403, 404, 422, 503),
)
async def windows(job_id: JobId, caller: Reader, context: ContextOf) -> Windows:
    """At most 100, newest first."""
    async with context.database.transaction() as connection:
        await find_job(connection, caller.project_id, job_id)
        return Windows(items=[_window_view(row) for row in await windows_of(connection, job_id)])


@windows_router.delete(
    "/{window_id}", operation_id="end_standby_window", summary="End a repeated window", responses=_WRITE
)
async def end_repeating(window_id: WindowId, request: Request, caller: Submitter, context: ContextOf) -> Window:
    """It does not come again. A standby that it has begun goes on to its end; one that has ended stays as it is."""
    known_id(window_id, "stbw", "window")
    async with audited(context, request, window_id) as write:
        row = await end_window(write.connection, caller.project_id, window_id, now_ms=context.clock.now_ms())
        return _window_view(row)


def _minute(text: str) -> int:
    hours, _, minutes = text.partition(":")
    return 60 * int(hours) + int(minutes)


def _window_view(row: WindowRow) -> Window:
    is_open = row.ended_ms is None
    return Window(
        id=row.window_id,
        job_id=row.job_id,
        days=list(row.days),
        begins=written_minute(row.from_minute),
        ends=written_minute(row.until_minute),
        zone=row.zone,
        lose_steps=row.lose_steps,
        created_at=instant(row.created_ms),
        next_at=instant(row.next_from_ms) if is_open else None,
        next_until=instant(row.next_until_ms) if is_open else None,
        ended_at=instant_or_none(row.ended_ms),
        why=row.ended_why,
    )
