"""What a project has used."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from allpass.wire.base import Instant
from allpass.wire.usage import Usage, UsageLine, UsageRest
from app.api.auth import Reader
from app.api.context import ApiContext, context_of
from app.api.errors import documented
from app.api.example_ids import example_id
from app.api.requests import Limit, at_ms, known_id
from app.services.money.report_usage import ACCEPTED, GROUP_PATTERN, report_usage

router = APIRouter(prefix="/v1", tags=["usage"])
ContextOf = Annotated[ApiContext, Depends(context_of)]
Begin = Annotated[
    Instant | None,
    Query(alias="from", description="The first instant that counts, with its zone", examples=["2026-11-01T00:00:00Z"]),
]
End = Annotated[
    Instant | None,
    Query(
        alias="to",
        description="The first instant that does not count, with its zone",
        examples=["2026-12-01T00:00:00Z"],
    ),
]


@router.get("/usage", summary="Cost and GPU time", responses=documented(401, 403, 404, 422, 503))
async def get_usage(
    caller: Reader,
    context: ContextOf,
    group_by: Annotated[
        str,
        Query(
            max_length=210,
            description=f"One of {ACCEPTED}",
            examples=["app"],
            json_schema_extra={"pattern": GROUP_PATTERN},
        ),
    ] = "job",
    job: Annotated[
        str | None,
        Query(max_length=100, description="Only of the job with this id", examples=[example_id("job")]),
    ] = None,
    begin: Begin = None,
    end: End = None,
    limit: Limit = 1000,
) -> Usage:
    """From the ledger, to the micro-dollar, the most expensive groups first (days: by date, in UTC).

    What booting and idle machines cost are lines of their own, under the job that they booted for, or that left them
    last. By size the key is how many GPUs a run held, smallest first; what booted or was idle has no size, and `key` is
    null. What does not fit into `limit` lines is in `rest`.
    """
    used = await report_usage(
        context.database,
        caller.project_id,
        group_by,
        from_ms=_ms(begin),
        to_ms=_ms(end),
        limit=limit,
        now_ms=context.clock.now_ms(),
        job_id=None if job is None else known_id(job, "job", "job"),
    )
    total = used.total
    lines = [
        UsageLine(key=row.key, name=row.name, payer=row.payer.value, cost=row.cost_micros, gpu_ms=row.gpu_ms)
        for row in total.rows
    ]
    rest = UsageRest(
        lines=total.row_count - len(lines),
        cost=total.cost_micros - sum(line.cost for line in lines),
        gpu_ms=total.gpu_ms - sum(line.gpu_ms for line in lines),
    )
    return Usage(
        group_by=group_by,
        from_at=begin,
        to_at=end,
        lines=lines,
        rest=rest,
        cost=total.cost_micros,
        gpu_ms=total.gpu_ms,
        idle_cost=total.idle_micros,
        so_far=used.open_nodes > 0,
        open_nodes=used.open_nodes,
    )


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else at_ms(moment)
