"""Jobs as lines of a table: pages of them, and what changes in them, as it happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic import Field

from allpass.wire.job_lines import JobLine, JobTable
from app.api import sse
from app.api.auth import Reader
from app.api.context import ApiContext, context_of
from app.api.cursors import id_cursor
from app.api.dashboard_examples import JOB_STREAM
from app.api.errors import documented
from app.api.jobs import STATES_PATTERN, read_label, read_states
from app.api.own_path import OwnPath
from app.api.requests import Cursor, Limit, at_most_shown
from app.api.views import cost_view, instant, instant_or_none, labels_view, where_view
from app.core.model.ids import Prefix, is_id
from app.core.model.job import JobState
from app.db.reading.changed_jobs import Moment, parse_moment, this_moment
from app.db.reading.job_lines import LineFilter, count_by_state, lines_page
from app.errors import InvalidInput
from app.services.reading.follow_lines import LineHub
from app.services.reading.list_lines import Line, complete_lines
from app.services.reading.watched_lines import TableWatcher

router = APIRouter(prefix="/v1/jobs/table", tags=["jobs"], route_class=OwnPath)
ContextOf = Annotated[ApiContext, Depends(context_of)]

LONGEST_S = 900.0  # as of a job's events: then the client connects again
_LONGEST_POSITION = 4000
_JOBS = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "event": {"enum": ["jobs", "reset"]},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"anyOf": [{"$ref": "#/components/schemas/JobChanges"}, {"type": "object"}]},
        },
    },
    "required": ["data"],
}


def _id_of(prefix: Prefix, noun: str) -> Any:
    return Query(
        max_length=100,
        description=f"Only jobs of this {noun}, by its id",
        examples=[f"{prefix}_01M7XQPVE2A96009XYYX"],
        json_schema_extra={"pattern": f"^{prefix}_[0-9A-HJKMNP-TV-Z]{{20}}$"},
    )


@router.get(
    "", operation_id="list_job_lines", summary="Jobs as lines of a table", responses=documented(401, 403, 414, 422, 503)
)
async def list_lines(
    caller: Reader,
    context: ContextOf,
    cursor: Cursor = None,
    limit: Limit = 200,
    status: Annotated[
        list[Annotated[str, Field(max_length=200, json_schema_extra={"pattern": STATES_PATTERN})]] | None,
        Query(max_length=20, description="One or more states; repeat it, or join with commas", examples=[["running"]]),
    ] = None,
    q: Annotated[
        str | None,
        Query(
            max_length=200,
            description="The beginning of an id, or a part of a name, an app's name or a label's value, in any case",
            examples=["lora"],
        ),
    ] = None,
    label: Annotated[
        list[Annotated[str, Field(max_length=500, json_schema_extra={"pattern": "^[^:]+:"})]] | None,
        Query(max_length=64, description="As key:value; repeated: all of them", examples=[["team:nlp"]]),
    ] = None,
    app_id: Annotated[str | None, _id_of("app", "app")] = None,
    sweep_id: Annotated[str | None, _id_of("swp", "sweep")] = None,
    key_id: Annotated[str | None, _id_of("key", "API key, which submitted them")] = None,
) -> JobTable:
    """Newest first, with what a table shows of each job. A page and the stream that goes on from its `position` miss
    nothing between them."""
    wanted = LineFilter(
        states=read_states(status or []),
        q=None if q is None else q.strip(),
        labels=tuple(read_label(text) for text in label or []),
        app_id=_known(app_id, "app", "app_id"),
        sweep_id=_known(sweep_id, "swp", "sweep_id"),
        key_id=_known(key_id, "key", "key_id"),
    )
    before = id_cursor(cursor, "job")
    async with context.database.transaction() as connection:
        position = await this_moment(connection)
        rows = await lines_page(connection, caller.project_id, wanted, before=before, limit=limit + 1)
        counts = await count_by_state(connection, caller.project_id, wanted)
        lines = await complete_lines(connection, rows[:limit], now_ms=context.clock.now_ms())
    return JobTable(
        data=[line_view(line) for line in lines],
        next_cursor=rows[limit - 1].id if len(rows) > limit else None,
        total=sum(count for state, count in counts.items() if state in (wanted.states or counts)),
        counts=counts_view(counts),
        position=str(position),
    )


@router.get(
    "/stream",
    operation_id="stream_job_lines",
    summary="Follow the jobs of the project",
    response_class=Response,
    responses={
        **documented(401, 403, 422, 503),
        200: {
            "content": {"text/event-stream": {"itemSchema": _JOBS, "example": JOB_STREAM}},
            "description": "`data` of `jobs` is a JobChanges, and `id` the position after it; `reset` has no data",
        },
    },
)
async def stream_lines(
    request: Request,
    caller: Reader,
    after: Annotated[
        str | None,
        Query(
            max_length=_LONGEST_POSITION,
            description="`position` of the page that was read; left out: a few seconds ago",
            examples=["1795220550.750:752:750"],
        ),
    ] = None,
    last_event_id: Annotated[
        str | None,
        Header(
            alias="Last-Event-ID",
            max_length=_LONGEST_POSITION,
            description="The last `id` you have; goes before `after`",
            examples=["1795220550.750:752:750"],
        ),
    ] = None,
) -> Response:
    """Server-sent events, at most one a second: the jobs that have changed since the position, each as it is now.

    `reset` says that too much has changed, or that it was too long ago: read the table anew. The stream ends after a
    quarter of an hour, or with the key or the session; connect again with `Last-Event-ID`, as browsers do by
    themselves. Comment lines are signs of life.
    """
    begin = None
    if last_event_id is not None or after is not None:
        name, written = ("after", after) if last_event_id is None else ("Last-Event-ID", last_event_id)
        begin = _position(written or "", name)
    hub: LineHub = request.app.state.line_hub
    hub.check_room()
    watcher = TableWatcher(caller.key_id, caller.session_id)
    return sse.EventStream(hub.watch(caller.project_id, watcher, begin), watcher.leave, LONGEST_S)


def encode_line(line: Line) -> bytes:
    """One line, as it stands in a page and in the stream."""
    return line_view(line).model_dump_json().encode()


def encode_changes(lines: Sequence[bytes], counts: Mapping[JobState, int], position: Moment) -> bytes:
    """Lines that were encoded before, as one server-sent event."""
    told = b",".join(b'"%b":%d' % (state.encode(), count) for state, count in counts_view(counts).items())
    return b'id: %b\nevent: jobs\ndata: {"data":[%b],"counts":{%b}}\n\n' % (
        str(position).encode(),
        b",".join(lines),
        told,
    )


def encode_reset(position: Moment) -> bytes:
    return b"id: %b\nevent: reset\ndata: {}\n\n" % str(position).encode()


def encode_still(position: Moment) -> bytes:
    """No event, for it has no data; but a browser that connects again goes on from here."""
    return b": still there\nid: %b\n\n" % str(position).encode()


def line_view(line: Line) -> JobLine:
    row = line.row
    return JobLine(
        id=row.id,
        name=row.name,
        app_id=row.app_id,
        app_name=row.app_name,
        sweep_id=row.sweep_id,
        status=row.state.value,
        priority_class=row.priority_class.value,
        reason=row.end_reason or row.pause_reason,
        message=row.end_message or row.wait_reason,
        where=None if line.place is None else where_view(line.place),
        step=row.step,
        total_steps=row.total_steps,
        moves=row.moves,
        faults=row.faults,
        cost=cost_view(row.spent_micros),
        saved=None if line.saved is None else line.saved.micros,
        soft_deadline=instant(row.deadline_ms),
        submitted_at=instant(row.submitted_ms),
        started_at=instant_or_none(row.first_running_ms),
        ended_at=instant_or_none(row.ended_ms),
        estimated_finish_at=instant_or_none(line.finish_ms),
        step_ms=line.step_ms,
        losses=list(line.losses),
        labels=labels_view(row.labels),
    )


def counts_view(counts: Mapping[JobState, int]) -> dict[str, int]:
    """States without a job are left out."""
    return {state.value: count for state, count in counts.items() if count}


def _known(text: str | None, prefix: Prefix, param: str) -> str | None:
    if text is not None and not is_id(text, prefix):
        raise InvalidInput(f"{param}: {at_most_shown(text)} is not an id that looks like {prefix}_...", param=param)
    return text


def _position(text: str, param: str) -> Moment:
    position = parse_moment(text)
    if position is None:
        raise InvalidInput(
            f"{param}: {at_most_shown(text)} is not a position of this stream; take `position` of GET /v1/jobs/table, "
            "or leave it out",
            param=param,
        )
    return position
