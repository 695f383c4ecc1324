"""Nodes, and the health of the service."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from allpass import __version__
from allpass.wire.base import Page
from allpass.wire.jobs import DegradedPart, Health, Node
from app.api.auth import Reader
from app.api.context import ApiContext, context_of
from app.api.cursors import id_cursor
from app.api.errors import RETRY_AFTER_S, documented
from app.api.requests import Cursor, Limit
from app.api.views import instant, node_view, page
from app.db.nodes import reads as node_reads
from app.errors import AllpassError
from app.services.reading.describe_health import Degraded, describe_health

router = APIRouter()
ContextOf = Annotated[ApiContext, Depends(context_of)]
_PROBE_TIMEOUT_S = 3.0


@router.get("/v1/nodes", summary="List nodes", tags=["nodes"], responses=documented(401, 403, 422, 503))
async def list_nodes(
    caller: Reader,
    context: ContextOf,
    cursor: Cursor = None,
    limit: Limit = 100,
    include_gone: Annotated[bool, Query(alias="all", description="Also those that are gone", examples=[True])] = False,
) -> Page[Node]:
    """Newest first."""
    before = id_cursor(cursor, "node")
    async with context.database.transaction() as connection:
        rows = await node_reads.list_nodes(
            connection, caller.project_id, include_gone=include_gone, before=before, limit=limit + 1
        )
        jobs = await node_reads.jobs_on(connection, [row.id for row in rows])
    return page(rows, limit, lambda row: node_view(row, jobs), lambda row: row.id)


@router.get(
    "/healthz", operation_id="check_health", summary="Is the process alive?", tags=["health"], responses=documented(500)
)
async def healthz() -> Health:
    """Asks nobody else."""
    return Health(status="ok", parts={"api": "ok"}, version=__version__)


@router.get(
    "/readyz",
    operation_id="check_readiness",
    summary="Can it serve?",
    tags=["health"],
    responses={**documented(500), 503: {"model": Health, "description": "The database does not answer"}},
)
async def readyz(response: Response, context: ContextOf) -> Health:
    """Each part with its state. 503 without the database. While another part is missing, or the control loop does not
    do all of its work, 200 and `degraded`: requests are served, and `degraded` says what is amiss. Every process says
    the same of the control loop."""
    database, control, degraded = await _probe_database(context)
    objects = await _probe_objects(context)
    if database != "ok":
        response.status_code = 503
        response.headers["Retry-After"] = RETRY_AFTER_S
    states = {"api": "ok", "database": database, "objects": objects, "control": control}
    healthy = all(state == "ok" for state in states.values())
    return Health(
        status="ok" if healthy else "degraded",
        parts=states,
        version=__version__,
        degraded=[
            DegradedPart(part=one.part, since=instant(one.since_ms), failures=one.failures, what=one.what)
            for one in degraded
        ],
    )


async def _probe_database(context: ApiContext) -> tuple[str, str, list[Degraded]]:
    """The state of the database and, as it tells, that of the control loop, with what of it does not work."""
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S), context.database.transaction() as connection:
            led = await node_reads.control_is_led(connection)
            degraded = await describe_health(connection, now_ms=context.clock.now_ms())
    except (AllpassError, TimeoutError):
        return "does not answer", "unknown", []
    if not led:
        return "ok", "no leader: jobs wait", []
    return "ok", "degraded" if degraded else "ok", degraded


async def _probe_objects(context: ApiContext) -> str:
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            return await context.objects.check() or "ok"
    except (AllpassError, TimeoutError):
        return "does not answer"
