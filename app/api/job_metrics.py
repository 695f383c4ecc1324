"""What a job measured: pages of points, a picture's worth of them, or a table to take away."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from allpass.wire.base import Page
from allpass.wire.jobs import MetricPoint, SystemPoint, SystemUse
from app.api.auth import Reader
from app.api.context import ApiContext, context_of
from app.api.cursors import number_cursor
from app.api.errors import documented
from app.api.jobs import find_job
from app.api.requests import Cursor, JobId, Limit
from app.api.views import instant, metric_view, page
from app.db.reading import job_records
from app.db.reading.job_records import MetricRow
from app.db.reading.metric_series import metric_names, named_metrics_after, thinned_metrics
from app.db.runs.system import samples_of
from app.errors import InvalidInput
from app.services.reading.thin_samples import thin_samples

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["job records"])
ContextOf = Annotated[ApiContext, Depends(context_of)]
_NAMES = r"^[^,]*[^,\s][^,]*(,[^,]*[^,\s][^,]*)*$"
AfterStep = Annotated[int | None, Query(ge=0, le=2**53, description="The last step you have", examples=[100])]
MaxPoints = Annotated[
    int | None,
    Query(ge=4, le=10_000, description="At most so many points of each name, in one page", examples=[500]),
]
Names = Annotated[
    list[Annotated[str, Field(max_length=10_000, json_schema_extra={"pattern": _NAMES})]] | None,
    Query(max_length=100, description="Only these; repeat it, or join with commas", examples=[["loss"]]),
]
Accept = Annotated[str | None, Header(max_length=1000, include_in_schema=False)]  # told by the answer's media types

_CSV = "text/csv"
_ROWS_AT_ONCE = 1000


@router.get(
    "/metrics",
    operation_id="list_metrics",
    summary="A job's metrics",
    response_model=Page[MetricPoint],
    responses={**documented(401, 403, 404, 414, 422, 503), 200: {"content": {_CSV: {}}, "description": "By step"}},
)
async def get_metrics(
    job_id: JobId,
    caller: Reader,
    context: ContextOf,
    after: AfterStep = None,
    cursor: Cursor = None,
    limit: Limit = 1000,
    max_points: MaxPoints = None,
    names: Names = None,
    accept: Accept = None,
) -> Page[MetricPoint] | Response:
    """By step. `next_cursor` is the last step of the page, so `cursor` and `after` say the same; `cursor` goes before.

    With `max_points`, a long history is thinned out: of every stretch the first, last, lowest and highest point of each
    name stay, so that no spike disappears. The points are real ones, each with the names that it was kept for. Of more
    than 100,000 points a bounded number is looked at, evenly spread.
    """
    if cursor is not None:
        after = number_cursor(cursor)
    wanted = None if names is None else _names(names)
    as_table = _wants_csv(accept)
    async with context.database.transaction() as connection:
        await find_job(connection, caller.project_id, job_id)
        thinned = None
        if max_points is not None:
            thinned = await thinned_metrics(connection, job_id, names=wanted, most=max_points, after=after)
        columns = await metric_names(connection, job_id) if as_table and wanted is None else wanted
    if as_table:
        batches = _batches(context, job_id, after, wanted) if thinned is None else _once(thinned)
        headers = {"content-disposition": f'attachment; filename="{job_id}-metrics.csv"'}
        return StreamingResponse(_table(columns or [], batches), media_type=_CSV, headers=headers)
    if thinned is not None:
        return Page(data=[metric_view(row) for row in thinned])
    rows = await _read(context, job_id, after, wanted, limit + 1)
    return page(rows, limit, metric_view, lambda row: str(row.step))


@router.get(
    "/system",
    operation_id="list_system",
    summary="What a job uses of its machines",
    responses=documented(401, 403, 404, 422, 503),
)
async def get_system(job_id: JobId, caller: Reader, context: ContextOf, max_points: MaxPoints = 500) -> SystemUse:
    """Processor, memory and GPUs over time, none of it among the job's own metrics. Of many samples
    stretches are shown: the mean of shares, the most of memory."""
    async with context.database.transaction() as connection:
        await find_job(connection, caller.project_id, job_id)
        rows = await samples_of(connection, job_id)
    thinned = thin_samples(rows, max_points or len(rows))
    return SystemUse(points=[SystemPoint(at=instant(row.at_ms), values=dict(row.values)) for row in thinned])


async def _read(
    context: ApiContext, job_id: str, after: int | None, names: Sequence[str] | None, limit: int
) -> list[MetricRow]:
    async with context.database.transaction() as connection:
        if names is None:
            return await job_records.metrics_after(connection, job_id, after, limit=limit)
        return await named_metrics_after(connection, job_id, after, names=names, limit=limit)


async def _batches(
    context: ApiContext, job_id: str, after: int | None, names: Sequence[str] | None
) -> AsyncIterator[list[MetricRow]]:
    """All points, a bounded number at a time, with no transaction open while the client reads."""
    while rows := await _read(context, job_id, after, names, _ROWS_AT_ONCE):
        yield rows
        after = rows[-1].step


async def _once(rows: list[MetricRow]) -> AsyncIterator[list[MetricRow]]:
    yield rows


async def _table(columns: Sequence[str], batches: AsyncIterator[list[MetricRow]]) -> AsyncIterator[bytes]:
    """Step, instant, and a column per name; a name that a step lacks is an empty cell."""
    yield _lines([["step", "at", *columns]])
    async for rows in batches:
        cells = (
            [row.step, instant(row.at_ms).isoformat(), *(row.values.get(one, "") for one in columns)] for row in rows
        )
        yield _lines(cells)


def _lines(rows: Iterable[Sequence[object]]) -> bytes:
    written = io.StringIO()
    csv.writer(written).writerows(rows)
    return written.getvalue().encode()


def _wants_csv(accept: str | None) -> bool:
    return accept is not None and any(part.split(";")[0].strip().lower() == _CSV for part in accept.split(","))


def _names(texts: Sequence[str]) -> list[str]:
    names = list(dict.fromkeys(part.strip() for text in texts for part in text.split(",")))
    if not all(names) or len(names) > 100:
        raise InvalidInput("names: 1 to 100 names of metrics, as in names=loss,lr", param="names")
    return names
