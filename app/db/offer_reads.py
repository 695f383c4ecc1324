"""Reading what could be rented now."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import BigInteger, ColumnElement, Integer, and_, cast, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import codec
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.db.tables import offers


@dataclass(frozen=True, slots=True)
class OfferRow:
    """`gpu_price` is micro-dollars per GPU and hour, rounded up."""

    offer: Offer
    gpu_price: int
    seen_ms: int

    @property
    def cursor(self) -> tuple[int, str, str]:
        return self.gpu_price, self.offer.provider, self.offer.offer_id


@dataclass(frozen=True, slots=True)
class OfferFilter:
    """Empty fields filter nothing. `most_gpu_price` is micro-dollars per GPU and hour."""

    gpu_type: str | None = None
    tier: Tier | None = None
    provider: str | None = None
    most_gpu_price: int | None = None


async def list_offers(
    connection: AsyncConnection,
    wanted: OfferFilter,
    *,
    seen_since_ms: int,
    after: tuple[int, str, str] | None,
    limit: int,
) -> list[OfferRow]:
    """Offers seen since then, the cheapest per GPU first, of those behind `after`."""
    columns = offers.c
    gpus = func.greatest(1, cast(columns.offer["gpu_count"].astext, Integer))
    gpu_price = cast((columns.price_micros_per_hour + gpus - 1) // gpus, BigInteger)
    conditions: list[ColumnElement[bool]] = [columns.seen_ms >= seen_since_ms]
    if wanted.gpu_type is not None:
        conditions.append(func.lower(columns.offer["gpu_type"].astext) == wanted.gpu_type.lower())
    if wanted.tier is not None:
        conditions.append(columns.tier == wanted.tier)
    if wanted.provider is not None:
        conditions.append(columns.provider == wanted.provider)
    if wanted.most_gpu_price is not None:
        conditions.append(gpu_price <= wanted.most_gpu_price)
    order = (gpu_price, columns.provider, columns.offer_id)
    if after is not None:
        price, provider, offer_id = after
        later = or_(columns.provider > provider, and_(columns.provider == provider, columns.offer_id > offer_id))
        conditions.append(or_(gpu_price > price, and_(gpu_price == price, later)))
    statement = (
        select(columns.offer, gpu_price.label("gpu_price"), columns.seen_ms)
        .where(*conditions)
        .order_by(*order)
        .limit(limit)
    )
    rows = await connection.execute(statement)
    return [OfferRow(codec.decode(Offer, row.offer), row.gpu_price, row.seen_ms) for row in rows]
