"""Pools of a team's own machines: owners define them, everybody sees them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from allpass.wire import pools as wire
from allpass.wire.base import Page
from app.api.audit import Write, audited
from app.api.auth import Owner, Reader
from app.api.context import ApiContext, context_of
from app.api.cursors import cursor_text, text_cursor
from app.api.errors import documented
from app.api.once import answer_once
from app.api.pool_views import host_view, pool_view
from app.api.requests import Cursor, IdempotencyHeader, Limit
from app.api.views import instant, page
from app.db.offers.provider_states import provider_states_now
from app.services.pools.define_pool import change_pool, define_pool, drain_pool, launchers_of, remove_pool
from app.services.pools.drain_host import drain_host, forget_host
from app.services.pools.join_host import make_pool_token
from app.services.pools.label_host import label_host
from app.services.pools.show_pools import list_pools, show_pool

router = APIRouter(prefix="/v1", tags=["pools"])
ContextOf = Annotated[ApiContext, Depends(context_of)]
_WRITE = documented(401, 403, 404, 409, 413, 422, 503)
PoolInPath = Annotated[
    str,
    Path(
        description="Name of a pool",
        examples=["lab"],
        json_schema_extra={"pattern": wire.POOL_PATTERN, "maxLength": 40},
    ),
]
HostInPath = Annotated[
    str, Path(description="Id or name of a host", examples=["gpu-box-1"], json_schema_extra={"maxLength": 200})
]


@router.get("/pools", operation_id="list_pools", summary="List pools", responses=documented(401, 403, 422, 503))
async def list_(caller: Reader, context: ContextOf, cursor: Cursor = None, limit: Limit = 100) -> Page[wire.Pool]:
    """By name, with their hosts and what of these is in use."""
    after = cursor_text(cursor)
    async with context.database.transaction() as connection:
        found = await list_pools(connection, after=after, limit=limit + 1, now_ms=context.clock.now_ms())
    return page(found, limit, pool_view, lambda one: text_cursor(one.row.pool.name))


@router.post(
    "/pools",
    operation_id="create_pool",
    summary="Define a pool",
    status_code=201,
    response_model=wire.Pool,
    responses=documented(401, 403, 409, 413, 422, 503),
)
async def create(
    body: wire.PoolRequest,
    request: Request,
    caller: Owner,
    context: ContextOf,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Hosts join it with a token of its own (`POST /v1/pools/{pool}/tokens`); machines of a launcher that is a provider
    are in the pool that is named as their shape."""

    async def act(write: Write) -> wire.Pool:
        now_ms = context.clock.now_ms()
        names = [one.provider for one in await provider_states_now(write.connection)]
        row = await define_pool(write.connection, context.ids, body, launchers_of(names), now_ms=now_ms)
        return pool_view(await show_pool(write.connection, row.pool.name, now_ms=now_ms))

    return await answer_once(context, request, act, object_id=body.name, status=201)


@router.get(
    "/pools/{pool}", operation_id="get_pool", summary="Show a pool", responses=documented(401, 403, 404, 422, 503)
)
async def get(pool: PoolInPath, caller: Reader, context: ContextOf) -> wire.Pool:
    async with context.database.transaction() as connection:
        return pool_view(await show_pool(connection, pool, now_ms=context.clock.now_ms()))


@router.patch("/pools/{pool}", operation_id="change_pool", summary="Change a pool", responses=_WRITE)
async def change(
    pool: PoolInPath, body: wire.PoolChange, request: Request, caller: Owner, context: ContextOf
) -> wire.Pool:
    """What is named changes, for whatever starts from now on; what runs there goes on as it began. `spot_share` alone
    counts at once, for what runs there as well."""
    now_ms = context.clock.now_ms()
    async with audited(context, request, pool) as write:
        await change_pool(write.connection, context.ids, pool, body, now_ms=now_ms)
        return pool_view(await show_pool(write.connection, pool, now_ms=now_ms))


@router.delete("/pools/{pool}", operation_id="remove_pool", summary="Remove a pool", responses=_WRITE)
async def remove(pool: PoolInPath, request: Request, caller: Owner, context: ContextOf) -> wire.Pool:
    """One that no host is in any more (409 otherwise); what it was in the ledger stays there."""
    now_ms = context.clock.now_ms()
    async with audited(context, request, pool) as write:
        shown = pool_view(await show_pool(write.connection, pool, now_ms=now_ms))
        await remove_pool(write.connection, pool, now_ms=now_ms)
    return shown


@router.post(
    "/pools/{pool}/tokens",
    operation_id="create_pool_token",
    summary="Make a token to join with",
    status_code=201,
    response_model=wire.PoolToken,
    responses=_WRITE,
)
async def token(
    pool: PoolInPath,
    body: wire.PoolTokenRequest,
    request: Request,
    caller: Owner,
    context: ContextOf,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """For so many hosts, and so long. It is told once, and kept as a hash."""
    now_ms = context.clock.now_ms()
    expires_ms = now_ms + body.valid_s * 1000

    async def act(write: Write) -> wire.PoolToken:
        made = await make_pool_token(write.connection, pool, joins=body.joins, expires_ms=expires_ms, now_ms=now_ms)
        return wire.PoolToken(pool=pool, token=made, joins=body.joins, expires_at=instant(expires_ms))

    return await answer_once(context, request, act, object_id=pool, status=201, until_ms=expires_ms)


@router.post(
    "/pools/{pool}/drain",
    operation_id="drain_pool",
    summary="Drain a pool or a host",
    response_model=wire.Pool,
    responses=_WRITE,
)
async def drain(
    pool: PoolInPath,
    body: wire.DrainRequest,
    request: Request,
    caller: Owner,
    context: ContextOf,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Nothing new starts there, and what runs moves away at an exact step, to where it is next cheapest. Hosts stay in
    their pool: `POST .../undrain` has them take jobs again."""
    return await _drain(context, request, pool, body.host, within_ms=body.within_s * 1000)


@router.post(
    "/pools/{pool}/undrain",
    operation_id="undrain_pool",
    summary="Use a pool or a host again",
    response_model=wire.Pool,
    responses=_WRITE,
)
async def undrain(
    pool: PoolInPath,
    body: wire.UndrainRequest,
    request: Request,
    caller: Owner,
    context: ContextOf,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    return await _drain(context, request, pool, body.host, within_ms=None)


@router.delete(
    "/pools/{pool}/hosts/{host}", operation_id="forget_host", summary="Forget a silent host", responses=_WRITE
)
async def forget(
    pool: PoolInPath, host: HostInPath, request: Request, caller: Owner, context: ContextOf
) -> wire.PoolHost:
    """One that does not answer any more, for a minute at least (409 otherwise): what ran there goes on elsewhere from
    its last checkpoint. Should the host come back, it ends what still runs there, and is in no pool."""
    now_ms = context.clock.now_ms()
    budget = context.settings.fault_budget
    row = await forget_host(context.database, context.ids, pool, host, fault_budget=budget, now_ms=now_ms)
    async with audited(context, request, row.host_id):
        return host_view(row, None, "gone")


@router.patch(
    "/pools/{pool}/hosts/{host}", operation_id="change_host", summary="Label a host of a pool", responses=_WRITE
)
async def change_one(
    pool: PoolInPath, host: HostInPath, body: wire.HostChange, request: Request, caller: Owner, context: ContextOf
) -> wire.PoolHost:
    """Labels say what it is and where it stands: `switch` is heeded wherever a job on several machines is placed."""
    now_ms = context.clock.now_ms()
    async with audited(context, request, host) as write:
        row = await label_host(write.connection, pool, host, body)
        shown = await show_pool(write.connection, pool, now_ms=now_ms)
    return next(host_view(one.row, one.seen, one.state) for one in shown.hosts if one.row.host_id == row.host_id)


async def _drain(
    context: ApiContext, request: Request, pool: str, host: str | None, *, within_ms: int | None
) -> Response:
    now_ms = context.clock.now_ms()

    async def act(write: Write) -> wire.Pool:
        if host is None:
            await drain_pool(write.connection, pool, within_ms=within_ms, now_ms=now_ms)
        else:
            await drain_host(write.connection, pool, host, within_ms=within_ms, now_ms=now_ms)
        return pool_view(await show_pool(write.connection, pool, now_ms=now_ms))

    return await answer_once(context, request, act, object_id=pool)
