"""Reading what could be rented now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Integer, Row, and_, case, cast, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.db.offers.listed import KNOWN_TIER, is_for_project, is_of_others_pool, read_offer
from app.db.tables import offers
from app.db.unreadable import RowReading


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
    project_id: str,
    wanted: OfferFilter,
    *,
    seen_since_ms: int,
    after: tuple[int, str, str] | None,
    limit: int,
) -> list[OfferRow]:
    """Offers seen since then that the project may have, the cheapest per GPU first, of those behind `after` that can be
    read."""
    found: list[OfferRow] = []
    while True:
        left = limit - len(found)
        rows = await _some(connection, project_id, wanted, seen_since_ms=seen_since_ms, after=after, limit=left)
        reading = RowReading()
        read = ((row, reading.of(offers.name, row.offer_id, partial(read_offer, row.offer))) for row in rows)
        found += [OfferRow(offer, row.gpu_price, row.seen_ms) for row, offer in read if offer is not None]
        if not reading.unread or not rows:
            return found
        after = (rows[-1].gpu_price, rows[-1].provider, rows[-1].offer_id)


async def _some(
    connection: AsyncConnection,
    project_id: str,
    wanted: OfferFilter,
    *,
    seen_since_ms: int,
    after: tuple[int, str, str] | None,
    limit: int,
) -> Sequence[Row[Any]]:
    columns = offers.c
    counted = func.jsonb_typeof(columns.offer["gpu_count"]) == "number"
    gpus = func.greatest(1, case((counted, cast(columns.offer["gpu_count"].astext, Integer)), else_=1))
    gpu_price = cast((columns.price_micros_per_hour + gpus - 1) // gpus, BigInteger)
    conditions: list[ColumnElement[bool]] = [
        KNOWN_TIER, columns.seen_ms >= seen_since_ms, is_for_project(project_id), ~is_of_others_pool(project_id)
    ]  # fmt: skip
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
        select(columns.provider, columns.offer_id, columns.offer, gpu_price.label("gpu_price"), columns.seen_ms)
        .where(*conditions)
        .order_by(*order)
        .limit(limit)
    )
    return (await connection.execute(statement)).all()
