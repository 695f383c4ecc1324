"""Steering a job while it lives: pause, resume, resize, change, and ask why."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from allpass.wire.controls import DeadlineOutlook, Explanation, JobUpdate, PauseRequest, ResizeRequest, Sentence
from allpass.wire.jobs import Job
from app.api.audit import Write, audited
from app.api.auth import Reader, Submitter
from app.api.context import ApiContext, context_of
from app.api.errors import documented
from app.api.jobs import find_job, read_job
from app.api.once import answer_once
from app.api.requests import IdempotencyHeader, JobId, known_id
from app.api.views import instant, instant_or_none
from app.core.explaining import JobExplanation
from app.core.explaining.facts import Remark
from app.db.decisions.snapshots import freeze
from app.db.jobs.reads import JobRow
from app.errors import InvalidInput
from app.services.jobs.pause_job import pause_job
from app.services.jobs.resume_job import resume_job
from app.services.jobs.submit_jobs import JobSubmitter
from app.services.jobs.update_job import update_job
from app.services.reading.explain_job import explain_job
from app.services.sizes.admit_nodes import admit_nodes
from app.services.sizes.resize_job import resize_job
from app.services.sizes.resize_nodes import resize_nodes

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["jobs"])
ContextOf = Annotated[ApiContext, Depends(context_of)]
_SAVES = PauseRequest()  # where no body is sent
_WRITE = documented(401, 403, 404, 409, 413, 422, 503)


@router.post("/pause", operation_id="pause_job", summary="Pause a job", response_model=Job, responses=_WRITE)
async def pause(
    job_id: JobId,
    request: Request,
    caller: Submitter,
    context: ContextOf,
    body: PauseRequest = _SAVES,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """At once where no code of it runs; running code saves first, and the job is `checkpointing` until it has left.

    A job that is paused already, or about to be, stays as it is; one that is over is a conflict. So is one whose
    checkpoints are not kept, as `steps_would_be_lost`: the message says how many steps that are, and `lose_steps`
    pauses it all the same.
    """
    known_id(job_id, "job", "job")
    now_ms = context.clock.now_ms()

    async def act(write: Write) -> Job:
        await pause_job(
            write.connection, context.ids, caller.project_id, job_id, lose_steps=body.lose_steps, now_ms=now_ms
        )
        return await read_job(write.connection, caller.project_id, job_id, now_ms=now_ms)

    return await answer_once(context, request, act, object_id=job_id)


@router.post("/resume", operation_id="resume_job", summary="Resume a job", response_model=Job, responses=_WRITE)
async def resume(
    job_id: JobId, request: Request, caller: Submitter, context: ContextOf, idempotency_key: IdempotencyHeader = None
) -> Response:
    """From its newest checkpoint. A job that is not paused stays as it is.

    A conflict for a job that is over, and while the limit that would stop it again is reached: `param` names it.
    """
    known_id(job_id, "job", "job")
    now_ms = context.clock.now_ms()

    async def act(write: Write) -> Job:
        await resume_job(write.connection, caller.project_id, job_id, now_ms=now_ms)
        return await read_job(write.connection, caller.project_id, job_id, now_ms=now_ms)

    return await answer_once(context, request, act, object_id=job_id)


@router.post(
    "/resize",
    operation_id="resize_job",
    summary="Change a job's number of GPUs, or of machines",
    response_model=Job,
    responses=_WRITE,
)
async def resize(
    job_id: JobId,
    body: ResizeRequest,
    request: Request,
    caller: Submitter,
    context: ContextOf,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Where it runs it goes on with so many, from one of its next steps and without a byte of its result changing: the
    built-in fine-tuning can. One with `resize_by: restart` is begun again for them, not exactly. More GPUs are its own
    at once; what it leaves is free when it has left it (the events `resize_asked` and `gpus_changed`). A job that does
    not run begins with so many.

    With `nodes` in the place of `gpus` it goes on on so many machines. Those that it lacks are rented, all or none,
    while it trains on (`node_rented`); once all are ready it saves, leaves, and begins on all of them at that step
    (`machines_changed`). Where they cannot be had it trains on as it is (`resize_waits`) and tries again, until as many
    as it has are asked for. To have fewer it leaves at once, and goes on with some of its own.

    A conflict for a job that is over, moving, or about to change its GPUs already; as `not_elastic` for one whose code
    keeps the GPUs or machines that it began with; and as `no_room` where its machine has not so many that are free.
    """
    known_id(job_id, "job", "job")
    now_ms = context.clock.now_ms()
    gpus, nodes, project_id = body.gpus, body.nodes, caller.project_id
    admitted = None
    if nodes is not None and gpus is None:
        submitter: JobSubmitter = request.app.state.submitter
        admitted = await admit_nodes(context.database, submitter.memory, project_id, job_id, nodes)

    async def act(write: Write) -> Job:
        if admitted is not None:
            await resize_nodes(write.connection, project_id, job_id, admitted, now_ms=now_ms)
        elif gpus is not None and nodes is None:
            await resize_job(write.connection, context.ids, project_id, job_id, gpus, now_ms=now_ms)
        else:
            raise InvalidInput("gpus: say how many GPUs, or nodes, how many machines: one of the two", param="gpus")
        return await read_job(write.connection, caller.project_id, job_id, now_ms=now_ms)

    return await answer_once(context, request, act, object_id=job_id)


@router.patch("", operation_id="update_job", summary="Change a job", responses=_WRITE)
async def update(job_id: JobId, body: JobUpdate, request: Request, caller: Submitter, context: ContextOf) -> Job:
    """Its deadline, limits and labels, until it is over. What is left out stays; `null` takes a limit away."""
    known_id(job_id, "job", "job")
    now_ms = context.clock.now_ms()
    async with audited(context, request, job_id) as write:
        await update_job(write.connection, context.settings, caller.project_id, job_id, body, now_ms=now_ms)
        return await read_job(write.connection, caller.project_id, job_id, now_ms=now_ms)


@router.get(
    "/explain",
    operation_id="explain_job",
    summary="Why a job is where it is",
    responses=documented(401, 403, 404, 422, 503),
)
async def explain(job_id: JobId, caller: Reader, context: ContextOf) -> Explanation:
    """In words, each with the facts it is made of: why it waits or runs where it does, and what comes next."""
    async with context.database.transaction() as connection:
        await freeze(connection)
        job = await find_job(connection, caller.project_id, job_id)
        told = await explain_job(connection, context.settings, job, now_ms=context.clock.now_ms())
    return _view(job, told)


def _view(job: JobRow, told: JobExplanation) -> Explanation:
    return Explanation(
        job_id=job.id,
        status=told.state.value,
        headline=told.headline,
        because=[_sentence(line) for line in told.because],
        next=[_sentence(line) for line in told.next],
        deadline=DeadlineOutlook(
            at=instant(told.deadline.at_ms),
            given=told.deadline.given,
            estimated_finish_at=instant_or_none(told.deadline.finish_ms),
            slack_ms=told.deadline.slack_ms,
            text=told.deadline.text,
        ),
        history=f"/v1/jobs/{job.id}/events",
    )


def _sentence(line: Remark) -> Sentence:
    return Sentence(text=line.text, data=dict(line.data))
