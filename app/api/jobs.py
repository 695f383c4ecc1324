"""Jobs and sweeps: finding, reading and cancelling them. Submitting is in `app.api.submit`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import AwareDatetime

from allpass.wire.base import Page
from allpass.wire.jobs import Job, Sweep, Timeline
from app.api.audit import audited
from app.api.auth import Reader, Submitter
from app.api.errors import documented
from app.api.parts import Parts, parts_of
from app.api.requests import Cursor, IdempotencyHeader, Limit, at_ms, id_cursor, known_id
from app.api.views import job_view, page, timeline_view
from app.core.model.job import JobState
from app.db import job_reads
from app.db.handles import Connection
from app.db.job_reads import JobFilter, JobRow
from app.errors import InvalidInput, NotFound
from app.services.cancel_job import cancel_job
from app.services.estimate_finish import estimate_finish
from app.services.tell_timeline import tell_timeline

router = APIRouter(prefix="/v1", tags=["jobs"])
_STATES = frozenset(state.value for state in JobState)
PartsOf = Annotated[Parts, Depends(parts_of)]


@router.get("/jobs", summary="List jobs", responses=documented(401, 403, 422, 503))
async def list_jobs(
    caller: Reader,
    parts: PartsOf,
    cursor: Cursor = None,
    limit: Limit = 100,
    status: Annotated[list[str] | None, Query(description="one or more states; repeat it, or join with commas")] = None,
    app: Annotated[str | None, Query(max_length=200, description="an app's id or name")] = None,
    label: Annotated[list[str] | None, Query(description="key:value; repeated: all of them")] = None,
    name: Annotated[str | None, Query(max_length=200, description="a part of the name, in any case")] = None,
    submitted_after: Annotated[AwareDatetime | None, Query(description="from this instant on")] = None,
    submitted_before: Annotated[AwareDatetime | None, Query(description="before this instant")] = None,
) -> Page[Job]:
    """Newest first."""
    wanted = JobFilter(
        _states(status or []),
        app,
        tuple(_label(text) for text in label or []),
        name=name,
        submitted_from_ms=None if submitted_after is None else at_ms(submitted_after),
        submitted_until_ms=None if submitted_before is None else at_ms(submitted_before),
    )
    before = id_cursor(cursor, "job")
    async with parts.database.transaction() as connection:
        rows = await job_reads.list_jobs(connection, caller.project_id, wanted, before=before, limit=limit + 1)
        places = await job_reads.places_of(connection, [row.id for row in rows])
        finishes = await estimate_finish(connection, rows, now_ms=parts.clock.now_ms())
    return page(rows, limit, lambda row: job_view(row, places.get(row.id), finishes.get(row.id)), lambda row: row.id)


@router.get("/jobs/{job_id}", summary="Get a job", responses=documented(401, 403, 404, 422, 503))
async def get_job(job_id: str, caller: Reader, parts: PartsOf) -> Job:
    """The job as it is now."""
    async with parts.database.transaction() as connection:
        return await read_job(connection, caller.project_id, job_id, now_ms=parts.clock.now_ms())


@router.post("/jobs/{job_id}/cancel", summary="Cancel a job", responses=documented(401, 403, 404, 409, 422, 503))
async def cancel(
    job_id: str, request: Request, caller: Submitter, parts: PartsOf, idempotency_key: IdempotencyHeader = None
) -> Job:
    """At once, whatever it is doing. A cancelled job stays as it is; one that succeeded or failed is a conflict."""
    known_id(job_id, "job", "job")
    async with audited(parts, request, job_id) as write:
        await cancel_job(write.connection, parts.ids, caller.project_id, job_id, now_ms=parts.clock.now_ms())
        return await read_job(write.connection, caller.project_id, job_id, now_ms=parts.clock.now_ms())


@router.get("/jobs/{job_id}/timeline", summary="Where a job has been", responses=documented(401, 403, 404, 422, 503))
async def get_timeline(job_id: str, caller: Reader, parts: PartsOf) -> Timeline:
    """Every stay on a node with its cost, and what the same running time costs all serverless."""
    async with parts.database.transaction() as connection:
        job = await find_job(connection, caller.project_id, job_id)
        return timeline_view(await tell_timeline(connection, job, now_ms=parts.clock.now_ms()))


@router.get("/sweeps/{sweep_id}", summary="Get a sweep", responses=documented(401, 403, 404, 422, 503))
async def get_sweep(sweep_id: str, caller: Reader, parts: PartsOf) -> Sweep:
    """All its jobs, in the order of their parameter sets."""
    known_id(sweep_id, "swp", "sweep")
    async with parts.database.transaction() as connection:
        rows = await job_reads.jobs_of_sweep(connection, caller.project_id, sweep_id)
        places = await job_reads.places_of(connection, [row.id for row in rows])
    if not rows:
        raise NotFound(f"there is no sweep {sweep_id!r} in this project")
    return Sweep(id=sweep_id, jobs=[job_view(row, places.get(row.id)) for row in rows])


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
    finishes = await estimate_finish(connection, [row], now_ms=now_ms)
    return job_view(row, places.get(job_id), finishes.get(job_id))


def _states(texts: list[str]) -> frozenset[JobState]:
    states = set()
    for text in (part.strip() for joined in texts for part in joined.split(",")):
        if text not in _STATES:
            raise InvalidInput(f"status: {text!r} is none of {', '.join(JobState)}", param="status")
        states.add(JobState(text))
    return frozenset(states)


def _label(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name:
        raise InvalidInput(f"label: {text!r} is not key:value", param="label")
    return name, value
