"""Prices of companies that have no interface for them: read by everybody, corrected by owners."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from allpass.wire.price_lists import ListPrice, OwnPricesRequest, PriceList
from allpass.wire.providers import PriceRefresh, PriceRefreshes
from app.api.audit import Write, audited
from app.api.auth import Admin, Owner, Reader
from app.api.context import ApiContext, context_of
from app.api.errors import documented
from app.api.once import answer_once, first_answer
from app.api.requests import IdempotencyHeader
from app.api.views import instant
from app.core.dated_prices import OLD_AFTER_DAYS, DatedPrices, is_old
from app.core.model.price_list import PriceInUse
from app.db.offers.price_lists import dated_prices
from app.services.offers.check_providers import check_providers
from app.services.offers.set_prices import drop_prices, prices_of, set_prices

router = APIRouter(prefix="/v1/providers", tags=["offers"])
ContextOf = Annotated[ApiContext, Depends(context_of)]
ProviderInPath = Annotated[
    str, Path(description="Name of the provider", examples=["modal"], json_schema_extra={"maxLength": 200})
]
Names = Annotated[
    str | None, Query(max_length=4_000, description="Of these names alone, separated by commas", examples=["H100,cpu"])
]


@router.get(
    "/{provider}/prices",
    operation_id="get_price_list",
    summary="Read a price list",
    responses=documented(401, 403, 404, 422, 503),
)
async def get(provider: ProviderInPath, caller: Reader, context: ContextOf) -> PriceList:
    """Only of companies that have no interface for prices: 404 for those that tell them with every listing."""
    async with context.database.transaction() as connection:
        found = await prices_of(connection, provider)
    return price_list_view(found, fresh_since(context))


@router.put(
    "/{provider}/prices",
    operation_id="set_prices",
    summary="Set prices",
    responses=documented(401, 403, 404, 409, 413, 422, 503),
)
async def put(
    provider: ProviderInPath, body: OwnPricesRequest, request: Request, caller: Owner, context: ContextOf
) -> PriceList:
    """In place of those of the list and of the settings, from the next listing on: decisions, plans and the ledger
    follow them. Machines that are rented keep the price that they were rented at. A price of more than three times the
    one in use, or less than a third of it, needs `confirm`."""
    async with audited(context, request, provider) as write:
        now_ms = context.clock.now_ms()
        settled = await set_prices(write.connection, provider, body, set_by=caller.key_id, now_ms=now_ms)
    return price_list_view(settled, fresh_since(context))


@router.delete(
    "/{provider}/prices",
    operation_id="remove_prices",
    summary="Take prices back",
    responses=documented(401, 403, 404, 413, 422, 503),
)
async def delete(
    provider: ProviderInPath, request: Request, caller: Owner, context: ContextOf, names: Names = None
) -> PriceList:
    """All that owners have set, or those of some names: what the settings or the list say counts again, from the next
    listing on."""
    wanted = None if names is None else [name.strip() for name in names.split(",")]
    async with audited(context, request, provider) as write:
        left = await drop_prices(write.connection, provider, wanted)
    return price_list_view(left, fresh_since(context))


@router.post(
    "/refresh",
    operation_id="refresh_prices",
    summary="Ask for prices now",
    response_model=PriceRefreshes,
    responses=documented(401, 403, 409, 413, 422, 503),
)
async def refresh(
    request: Request, caller: Admin, context: ContextOf, idempotency_key: IdempotencyHeader = None
) -> Response:
    """Has every provider list what it would rent, as happens from time to time; rents nothing. Takes up to 20 seconds.

    A company that has no interface for prices cannot be asked: its list is as old as it was.
    """
    first = await first_answer(context, request)
    if first is not None:
        return first
    answers = await check_providers(
        context.database, context.listener, context.clock, context.ids, poll_s=context.settings.poll_s, prices=True
    )
    async with context.database.transaction() as connection:
        lists = await dated_prices(connection)
    since = fresh_since(context)
    refreshes = [
        PriceRefresh(
            name=row.provider,
            code=answer.error_code,
            message=answer.message,
            offers=answer.offers,
            took_ms=max(0, (row.answered_ms or context.clock.now_ms()) - row.requested_ms),
            price_list=price_list_view(lists[row.provider], since) if row.provider in lists else None,
        )
        for row, answer in answers
    ]

    async def act(write: Write) -> PriceRefreshes:
        return PriceRefreshes(refreshes=refreshes)

    return await answer_once(context, request, act)


def fresh_since(context: ApiContext) -> str:
    """Prices from before that day of UTC are old."""
    now = datetime.fromtimestamp(context.clock.now_ms() / 1000, UTC)
    return (now.date() - timedelta(days=OLD_AFTER_DAYS)).isoformat()


def day_or_none(text: str | None) -> date | None:
    return None if text is None else date.fromisoformat(text)


def price_list_view(dated: DatedPrices, since: str) -> PriceList:
    oldest = dated.oldest()
    return PriceList(
        as_of=date.fromisoformat(dated.as_of),
        oldest=day_or_none(oldest),
        is_old=is_old(oldest, since),
        prices=[_price(one, since) for one in dated.prices],
    )


def _price(one: PriceInUse, since: str) -> ListPrice:
    return ListPrice(
        name=one.name,
        published=None if one.published is None else one.published.micros,
        setting=None if one.setting is None else one.setting.micros,
        own=None if one.own is None else one.own.per_hour.micros,
        set_at=None if one.own is None else instant(one.own.set_ms),
        set_by=None if one.own is None else one.own.set_by,
        used=None if one.used is None else one.used.micros,
        source=None if one.source is None else one.source.value,
        as_of=day_or_none(one.as_of),
        is_old=is_old(one.as_of, since),
    )
