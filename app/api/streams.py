"""Server-sent events: a job's events as they happen."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic_core import to_json

from app.api.auth import Reader
from app.api.context import ApiContext, context_of
from app.api.errors import documented
from app.api.jobs import find_job
from app.api.requests import JobId
from app.api.sse import EventStream
from app.api.views import event_view
from app.core.model.job import TERMINAL_JOB_STATES, JobState
from app.db.reading.job_records import EventRow
from app.errors import InvalidInput
from app.services.reading.follow_events import EventHub, Follower

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["job records"])
ContextOf = Annotated[ApiContext, Depends(context_of)]
After = Annotated[int, Query(ge=0, le=2**53, description="The last position you have", examples=[0])]
LastEventId = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        max_length=20,
        description="The last `id` you have; goes before `after`",
        examples=["12"],
        json_schema_extra={"pattern": "^[0-9]{1,15}$"},
    ),
]

_END = {
    "type": "object",
    "properties": {"status": {"enum": sorted(TERMINAL_JOB_STATES)}},
    "required": ["status"],
}
# As OpenAPI 3.2 describes streams; readers of 3.1 pass over it.
_EVENT = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "event": {"enum": ["message", "end"]},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"anyOf": [{"$ref": "#/components/schemas/JobEvent"}, _END]},
        },
    },
    "required": ["data"],
}

LONGEST_S = 900.0  # then the client connects again and shows its key: a revoked one does not read on for hours


@router.get(
    "/events/stream",
    summary="Follow a job's events",
    response_class=Response,
    responses={
        **documented(401, 403, 404, 422, 503),
        200: {
            "content": {"text/event-stream": {"itemSchema": _EVENT}},
            "description": "`data` is a JobEvent and `id` its position; the last one is `end`, with the job's status",
        },
    },
)
async def stream_events(
    job_id: JobId,
    request: Request,
    caller: Reader,
    context: ContextOf,
    after: After = 0,
    last_event_id: LastEventId = None,
) -> Response:
    """Server-sent events from a position on, each once, none skipped, until the job is over: then one `end` event.

    A stream that ends without it (after a quarter of an hour, or with the connection) goes on where it was when you
    connect again with `Last-Event-ID`. Comment lines are signs of life.
    """
    position = after if last_event_id is None else _position(last_event_id)
    async with context.database.transaction() as connection:
        await find_job(connection, caller.project_id, job_id)
    hub: EventHub = request.app.state.event_hub
    follower = Follower(position)
    return EventStream(_parts(hub, job_id, follower), follower.leave, LONGEST_S)


def encode_event(row: EventRow) -> bytes:
    """One event as a server-sent event."""
    return b"id: %d\ndata: %b\n\n" % (row.position, event_view(row).model_dump_json().encode())


async def _parts(hub: EventHub, job_id: str, follower: Follower) -> AsyncGenerator[bytes, None]:
    async with aclosing(hub.follow(job_id, follower)) as batches:
        async for batch in batches:
            yield _end(batch, follower) if isinstance(batch, JobState) else batch.content


def _end(state: JobState, follower: Follower) -> bytes:
    return b"id: %d\nevent: end\ndata: %b\n\n" % (follower.position, to_json({"status": state.value}))


def _position(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > 2**53:
        raise InvalidInput(f"Last-Event-ID: {text!r} is not a position of this stream", param="Last-Event-ID")
    return int(text)
