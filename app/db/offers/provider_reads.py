"""What people ask about providers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sqlalchemy import Integer, cast, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.node import GONE_NODE_STATES, Tier
from app.db.offers.listed import KNOWN_TIER
from app.db.offers.provider_states import ErrorCount
from app.db.tables import nodes, offers, provider_errors


@dataclass(frozen=True, slots=True)
class PriceRange:
    """Of what a provider offers: micro-dollars per GPU and hour, rounded up."""

    provider: str
    tier: Tier
    gpu_type: str
    offers: int
    lowest_micros: int
    highest_micros: int


async def price_ranges(connection: AsyncConnection, *, seen_since_ms: int) -> list[PriceRange]:
    """By provider, tier and type of GPU: of the offers seen since then."""
    column = offers.c
    gpus = func.greatest(1, cast(column.offer["gpu_count"].astext, Integer))
    gpu_price = (column.price_micros_per_hour + gpus - 1) // gpus
    gpu_type = column.offer["gpu_type"].astext
    rows = await connection.execute(
        select(column.provider, column.tier, gpu_type, func.count(), func.min(gpu_price), func.max(gpu_price))
        .where(KNOWN_TIER, column.seen_ms >= seen_since_ms)
        .group_by(column.provider, column.tier, gpu_type)
        .order_by(column.provider, column.tier, gpu_type)
    )
    return [PriceRange(row[0], Tier(row[1]), row[2], row[3], int(row[4]), int(row[5])) for row in rows]


async def open_machines(connection: AsyncConnection, project_id: str) -> Counter[str]:
    """How many machines of the project are not gone, by provider."""
    rows = await connection.execute(
        select(nodes.c.provider, func.count())
        .where(nodes.c.project_id == project_id, nodes.c.state.not_in(GONE_NODE_STATES))
        .group_by(nodes.c.provider)
    )
    return Counter({row[0]: int(row[1]) for row in rows})


async def error_counts(connection: AsyncConnection) -> list[ErrorCount]:
    """Errors of calls to providers since this database was made."""
    column = provider_errors.c
    rows = await connection.execute(select(provider_errors).order_by(column.provider, column.call, column.code))
    return [ErrorCount(*row) for row in rows]
