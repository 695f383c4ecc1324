"""How many GPUs a job has had over time."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from allpass.wire.base import Page
from allpass.wire.jobs import JobSize
from app.api.auth import Reader
from app.api.context import ApiContext, context_of
from app.api.cursors import cursor_text, text_cursor, wrong_cursor
from app.api.errors import documented
from app.api.jobs import find_job
from app.api.requests import Cursor, JobId, Limit, known_id
from app.api.views import instant, instant_or_none, page
from app.core.model.ids import is_id
from app.core.size_history import Size
from app.services.reading.list_sizes import list_sizes

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["job records"])
ContextOf = Annotated[ApiContext, Depends(context_of)]


@router.get(
    "/sizes", operation_id="list_sizes", summary="A job's number of GPUs", responses=documented(401, 403, 404, 422, 503)
)
async def get_sizes(
    job_id: JobId, caller: Reader, context: ContextOf, cursor: Cursor = None, limit: Limit = 100
) -> Page[JobSize]:
    """From when to when a run of it held how many, oldest first, and why that changed: asked for by its owner, lent to
    a job that waits, or back. What it costs by size: `GET /v1/usage?group_by=size&job=...`."""
    known_id(job_id, "job", "job")
    after = _after(cursor)
    async with context.database.transaction() as connection:
        await find_job(connection, caller.project_id, job_id)
        rows = await list_sizes(connection, job_id, after, limit=limit + 1)
    return page(rows, limit, _view, lambda row: text_cursor(f"{row.held.from_ms} {row.held.size_id}"))


def _after(cursor: str | None) -> tuple[int, str] | None:
    """Raises InvalidInput."""
    text = cursor_text(cursor)
    if cursor is None or text is None:
        return None
    from_ms, _, size_id = text.partition(" ")
    if not (from_ms.isascii() and from_ms.isdigit() and len(from_ms) < 16 and is_id(size_id, "aloc")):
        raise wrong_cursor(cursor)
    return int(from_ms), size_id


def _view(size: Size) -> JobSize:
    held = size.held
    return JobSize(
        run_id=held.run_id,
        node_id=held.node_id,
        gpu_type=held.gpu_type,
        gpus=held.gpus,
        gpus_before=held.before,
        price_per_hour=held.price_per_hour.micros,
        from_at=instant(held.from_ms),
        to_at=instant_or_none(held.to_ms),
        why=size.why.value,
        text=size.text,
        for_job_id=size.for_job_id,
        step_s=None if size.speed is None else 1 / size.speed.steps_per_s,
        noise=None if size.speed is None else size.speed.noise,
    )
