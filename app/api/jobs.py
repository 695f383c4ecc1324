"""Jobs and sweeps: finding, reading and cancelling them. Submitting is in `app.api.submit`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field

from allpass.wire.base import Instant, Page
from allpass.wire.jobs import Job, Sweep, Timeline
from app.api.audit import Write
from app.api.auth import Reader, Submitter
from app.api.context import ApiContext, context_of
from app.api.cursors import id_cursor
from app.api.errors import documented
from app.api.once import answer_once
from app.api.requests import Cursor, IdempotencyHeader, JobId, Limit, SweepId, at_ms, known_id
from app.api.result_views import results_view
from app.api.views import job_view, page, timeline_view, transfer_view
from app.core.model.job import JobState
from app.db.checkpoints.transfers import HEARD_MS, transfer_of
from app.db.connection import Connection
from app.db.jobs import reads as job_reads
from app.db.jobs.reads import JobFilter, JobRow
from app.db.merging.merges import newest_merges
from app.db.money.idle import idle_micros
from app.db.money.usage import discount_of_job
from app.db.runs.results import results_of
from app.errors import InvalidInput, NotFound
from app.services.jobs.cancel_job import cancel_job
from app.services.jobs.warn_of_template import warnings_of
from app.services.reading.estimate_finish import estimate_finishes, estimate_one
from app.services.reading.read_timeline import read_timeline

router = APIRouter(prefix="/v1", tags=["jobs"])
_STATES = frozenset(state.value for state in JobState)
_STATE = "|".join(JobState)
STATES_PATTERN = f"^({_STATE})(,({_STATE}))*$"
ContextOf = Annotated[ApiContext, Depends(context_of)]


@router.get("/jobs", summary="List jobs", responses=documented(401, 403, 414, 422, 503))
async def list_jobs(
    caller: Reader,
    context: ContextOf,
    cursor: Cursor = None,
    limit: Limit = 100,
    status: Annotated[
        list[Annotated[str, Field(max_length=200, json_schema_extra={"pattern": STATES_PATTERN})]] | None,
        Query(max_length=20, description="One or more states; repeat it, or join with commas", examples=[["running"]]),
    ] = None,
    app: Annotated[
        str | None, Query(max_length=200, description="An app's id or name", examples=["llama-lora"])
    ] = None,
    label: Annotated[
        list[Annotated[str, Field(max_length=500, json_schema_extra={"pattern": "^[^:]+:"})]] | None,
        Query(max_length=64, description="As key:value; repeated: all of them", examples=[["team:nlp"]]),
    ] = None,
    name: Annotated[
        str | None, Query(max_length=200, description="A part of the name, in any case", examples=["lora"])
    ] = None,
    submitted_after: Annotated[
        Instant | None, Query(description="From this instant on", examples=["2026-11-01T00:00:00Z"])
    ] = None,
    submitted_before: Annotated[
        Instant | None, Query(description="Before this instant", examples=["2026-12-01T00:00:00Z"])
    ] = None,
) -> Page[Job]:
    """Newest first."""
    wanted = JobFilter(
        read_states(status or []),
        app,
        tuple(read_label(text) for text in label or []),
        name=name,
        submitted_from_ms=None if submitted_after is None else at_ms(submitted_after),
        submitted_until_ms=None if submitted_before is None else at_ms(submitted_before),
    )
    before = id_cursor(cursor, "job")
    async with context.database.transaction() as connection:
        rows = await job_reads.list_jobs(connection, caller.project_id, wanted, before=before, limit=limit + 1)
        places = await job_reads.places_of(connection, [row.id for row in rows])
        finishes = await estimate_finishes(connection, rows, now_ms=context.clock.now_ms())
        merged = await newest_merges(connection, [row.id for row in rows])

    def view(row: JobRow) -> Job:
        return job_view(row, places.get(row.id), finishes.get(row.id), merged.get(row.id))

    return page(rows, limit, view, lambda row: row.id)


@router.get("/jobs/{job_id}", summary="Get a job", responses=documented(401, 403, 404, 422, 503))
async def get_job(job_id: JobId, caller: Reader, context: ContextOf) -> Job:
    """The job as it is now."""
    async with context.database.transaction() as connection:
        return await read_job(connection, caller.project_id, job_id, now_ms=context.clock.now_ms())


@router.post(
    "/jobs/{job_id}/cancel",
    operation_id="cancel_job",
    summary="Cancel a job",
    response_model=Job,
    responses=documented(401, 403, 404, 409, 413, 422, 503),
)
async def cancel(
    job_id: JobId, request: Request, caller: Submitter, context: ContextOf, idempotency_key: IdempotencyHeader = None
) -> Response:
    """At once, whatever it is doing. A cancelled job stays as it is; one that succeeded or failed is a conflict."""
    known_id(job_id, "job", "job")

    async def act(write: Write) -> Job:
        now_ms = context.clock.now_ms()
        await cancel_job(write.connection, context.ids, caller.project_id, job_id, now_ms=now_ms)
        return await read_job(write.connection, caller.project_id, job_id, now_ms=now_ms)

    return await answer_once(context, request, act, object_id=job_id)


@router.get("/jobs/{job_id}/timeline", summary="Where a job has been", responses=documented(401, 403, 404, 422, 503))
async def get_timeline(job_id: JobId, caller: Reader, context: ContextOf) -> Timeline:
    """Every stay on a node with its cost, and what the same running time costs all serverless."""
    async with context.database.transaction() as connection:
        job = await find_job(connection, caller.project_id, job_id)
        return timeline_view(await read_timeline(connection, job, now_ms=context.clock.now_ms()))


@router.get("/sweeps/{sweep_id}", summary="Get a sweep", responses=documented(401, 403, 404, 422, 503))
async def get_sweep(sweep_id: SweepId, caller: Reader, context: ContextOf) -> Sweep:
    """All its jobs, in the order of their parameter sets."""
    known_id(sweep_id, "swp", "sweep")
    async with context.database.transaction() as connection:
        rows = await job_reads.jobs_of_sweep(connection, caller.project_id, sweep_id)
        places = await job_reads.places_of(connection, [row.id for row in rows])
        merged = await newest_merges(connection, [row.id for row in rows])
    if not rows:
        raise NotFound(f"there is no sweep {sweep_id!r} in this project")
    return Sweep(id=sweep_id, jobs=[job_view(row, places.get(row.id), merge=merged.get(row.id)) for row in rows])


async def find_job(connection: Connection, project_id: str, job_id: str) -> JobRow:
    """Raises NotFound for what is no job of this project."""
    known_id(job_id, "job", "job")
    row = await job_reads.find_job(connection, project_id, job_id)
    if row is None:
        raise NotFound(f"there is no job {job_id!r} in this project")
    return row


async def read_job(connection: Connection, project_id: str, job_id: str, *, now_ms: int) -> Job:
    """The job as it is shown. Raises NotFound."""
    row = await find_job(connection, project_id, job_id)
    places = await job_reads.places_of(connection, [job_id])
    finish = await estimate_one(connection, row, now_ms=now_ms)
    merged = await newest_merges(connection, [job_id])
    moving = await transfer_of(connection, job_id, heard_after_ms=now_ms - HEARD_MS)
    transfer = None if moving is None else transfer_view(moving, now_ms)
    results = results_view(await results_of(connection, job_id))
    idle, discount = await idle_micros(connection, job_id), await discount_of_job(connection, job_id)
    warnings = warnings_of(row.template)
    told = job_view(row, places.get(job_id), finish, merged.get(job_id), transfer, results, idle or None, warnings)
    return told.model_copy(update={"spot_discount": discount or None})


def read_states(texts: list[str]) -> frozenset[JobState]:
    """The states of a filter. Raises InvalidInput."""
    states = set()
    for text in (part.strip() for joined in texts for part in joined.split(",")):
        if text not in _STATES:
            raise InvalidInput(f"status: {text!r} is none of {', '.join(JobState)}", param="status")
        states.add(JobState(text))
    return frozenset(states)


def read_label(text: str) -> tuple[str, str]:
    """A label of a filter, as name and value. Raises InvalidInput."""
    name, colon, value = text.partition(":")
    if not colon or not name:
        raise InvalidInput(f"label: {text!r} is not key:value", param="label")
    return name, value
