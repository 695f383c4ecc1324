"""What the installation may rent from companies that ask for real money, for those who own it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from allpass.wire.limits import Limits, LimitsUpdate
from app.api.audit import audited
from app.api.auth import Owner
from app.api.context import ApiContext, context_of
from app.api.errors import documented
from app.api.views import instant
from app.core.limits import DAY_MS, day_begins_ms
from app.db.connection import Connection
from app.db.money.limits import DAY_MICROS, MACHINES, change_limits, read_limits, rented_now
from app.services.jobs.compose_job import micros
from app.services.nodes.check_addresses import real_providers

router = APIRouter(prefix="/v1", tags=["limits"])
ContextOf = Annotated[ApiContext, Depends(context_of)]


@router.get("/limits", operation_id="get_limits", summary="Read the limits", responses=documented(401, 403, 422, 503))
async def get(caller: Owner, context: ContextOf) -> Limits:
    """With what counts against them now, over all projects."""
    async with context.database.transaction() as connection:
        return await _view(connection, context)


@router.patch(
    "/limits",
    operation_id="update_limits",
    summary="Change the limits",
    responses=documented(401, 403, 413, 422, 503),
)
async def update(body: LimitsUpdate, request: Request, caller: Owner, context: ContextOf) -> Limits:
    """From the next decision on. Jobs that the limit of a day has paused go on by themselves."""
    new: dict[str, int | None] = {}
    if "machines" in body.model_fields_set:
        new[MACHINES] = body.machines
    if "per_day_usd" in body.model_fields_set:
        new[DAY_MICROS] = None if body.per_day_usd is None else micros(body.per_day_usd, "per_day_usd")
    async with audited(context, request) as write:
        await change_limits(write.connection, new, now_ms=context.clock.now_ms())
        return await _view(write.connection, context)


async def _view(connection: Connection, context: ApiContext) -> Limits:
    now_ms, real = context.clock.now_ms(), real_providers(context.settings)
    limits = await read_limits(connection)
    rented = await rented_now(connection, real, now_ms=now_ms)
    return Limits(
        machines=limits.machines,
        per_day=None if limits.per_day is None else limits.per_day.micros,
        providers=sorted(real),
        machines_rented=rented.machines,
        spent_today=rented.spent.micros,
        day_ends_at=instant(day_begins_ms(now_ms) + DAY_MS),
    )
