"""Finding text in a job's log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from allpass.wire.base import Page
from allpass.wire.jobs import LogMatch
from app.api.auth import Reader
from app.api.context import ApiContext, context_of
from app.api.errors import documented
from app.api.requests import Cursor, JobId, Limit, known_id
from app.services.reading.search_log import LONGEST_QUERY, search_log

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["job records"])
ContextOf = Annotated[ApiContext, Depends(context_of)]


@router.get(
    "/logs/search",
    operation_id="search_log",
    summary="Search a job's log",
    responses=documented(401, 403, 404, 422, 502, 503),
)
async def search(
    job_id: JobId,
    caller: Reader,
    context: ContextOf,
    q: Annotated[
        str,
        Query(
            min_length=1,
            max_length=LONGEST_QUERY,
            description="The text, as it is: no pattern, and within one line",
            examples=["CUDA out of memory"],
            json_schema_extra={"pattern": "^[^\\n]+$"},
        ),
    ],
    ignore_case: Annotated[bool, Query(description="Find it in any case", examples=[True])] = False,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Page[LogMatch]:
    """Lines that hold the text, in order, over all runs.

    A page looks at a bounded part of the log, so it may be empty and still have a `next_cursor`; without one, all that
    is stored by now has been searched.
    """
    known_id(job_id, "job", "job")
    found = await search_log(
        context.database,
        context.objects,
        caller.project_id,
        job_id,
        q,
        ignore_case=ignore_case,
        limit=limit,
        cursor=cursor,
    )
    matches = [LogMatch(line=one.line, position=one.position, text=one.text) for one in found.matches]
    return Page(data=matches, next_cursor=found.next_cursor)
