"""What could be rented now."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from allpass.wire.base import Page
from allpass.wire.usage import Offer
from app.api.auth import Reader
from app.api.context import ApiContext, context_of
from app.api.cursors import cursor_text, text_cursor, wrong_cursor
from app.api.errors import documented
from app.api.price_lists import day_or_none, fresh_since
from app.api.requests import Cursor, Limit
from app.api.views import instant, page
from app.core.dated_prices import DatedPrices, day_of, is_old
from app.core.model.node import Tier
from app.core.pools import SharesNow, spot_price
from app.db.offers.price_lists import dated_prices
from app.db.offers.reads import OfferFilter, OfferRow, list_offers
from app.db.pools.spot_shares import shares_now

router = APIRouter(prefix="/v1", tags=["offers"])
ContextOf = Annotated[ApiContext, Depends(context_of)]


@router.get("/offers", operation_id="list_offers", summary="List offers", responses=documented(401, 403, 422, 503))
async def get_offers(
    caller: Reader,
    context: ContextOf,
    cursor: Cursor = None,
    limit: Limit = 100,
    gpu_type: Annotated[str | None, Query(max_length=100, description="Of this type alone", examples=["A100"])] = None,
    tier: Annotated[Tier | None, Query(description="Of this tier alone", examples=["marketplace"])] = None,
    provider: Annotated[
        str | None, Query(max_length=100, description="Of this provider alone", examples=["local"])
    ] = None,
    max_price: Annotated[
        int | None, Query(ge=0, le=2**53, description="Micro-dollars per GPU and hour, at most", examples=[2_000_000])
    ] = None,
) -> Page[Offer]:
    """Those that your project may have, as the providers last told, the cheapest per GPU first."""
    oldest_ms = context.clock.now_ms() - context.settings.offers_gone_after_ms
    wanted = OfferFilter(gpu_type, tier, provider, max_price)
    async with context.database.transaction() as connection:
        after, most = _after(cursor), limit + 1
        rows = await list_offers(
            connection, caller.project_id, wanted, seen_since_ms=oldest_ms, after=after, limit=most
        )
        lists, shares = await dated_prices(connection), await shares_now(connection)
    return page(
        rows,
        limit,
        partial(_view, lists, shares, fresh_since(context)),
        lambda row: text_cursor(":".join(map(str, row.cursor))),
    )


def _view(lists: Mapping[str, DatedPrices], shares: SharesNow, since: str, row: OfferRow) -> Offer:
    offer = row.offer
    as_of = day_of(lists, offer)
    return Offer(
        provider=offer.provider,
        offer_id=offer.offer_id,
        tier=offer.tier.value,
        gpu_type=offer.gpu_type,
        gpu_count=offer.gpu_count,
        gpu_memory_bytes=offer.gpu_memory_bytes,
        cpus=offer.cpus,
        memory_bytes=offer.memory_bytes,
        region=offer.region,
        price_per_hour=offer.price_per_hour.micros,
        price_per_gpu_hour=row.gpu_price,
        spot_price_per_hour=spot_price(shares, offer),
        traffic_per_gb=row.offer.traffic_micros_per_gb or None,
        startup_ms=offer.startup_ms,
        mean_life_ms=offer.mean_life_ms or None,
        cpu_architecture=offer.cpu_architecture,
        interruptible=offer.interruptible,
        seen_at=instant(row.seen_ms),
        price_as_of=day_or_none(as_of),
        price_is_old=is_old(as_of, since),
    )


def _after(cursor: str | None) -> tuple[int, str, str] | None:
    text = cursor_text(cursor)
    if cursor is None or text is None:
        return None
    price, _, rest = text.partition(":")
    provider, colon, offer_id = rest.partition(":")
    if not (price.isascii() and price.isdigit() and len(price) < 19 and colon):
        raise wrong_cursor(cursor)
    return int(price), provider, offer_id
