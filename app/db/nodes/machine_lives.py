"""How long machines have lived lately, and how many of them failed."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Float, cast, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.foreign import read_as
from app.core.machine_lives import COUNTS_FOR_MS, HALF_LIFE_MS, Lived
from app.core.model.node import GONE_NODE_STATES, Tier
from app.db.arrays import is_one_of
from app.db.bids import is_bid
from app.db.tables import nodes


async def lived_lately(connection: AsyncConnection, provider: str, *, now_ms: int) -> list[Lived]:
    """Of the provider's machines that came up, those that are still there too; what was bid for by itself. One that
    ended when it was to end has not failed, and one that was lost to a higher bid has."""
    row = nodes.c
    until_ms = func.coalesce(row.lost_ms, row.ended_ms, now_ms)
    ago_ms = func.greatest(0, func.least(now_ms - until_ms, COUNTS_FOR_MS))  # of longer ago power() knows no number
    counts = func.power(0.5, cast(ago_ms, Float) / HALF_LIFE_MS)
    failed = row.lost_ms.is_not(None) & (row.lost_ms < func.coalesce(row.ends_ms, 2**62))
    lived_ms = func.greatest(0, func.least(until_ms - row.ready_ms, COUNTS_FOR_MS))
    found = await connection.execute(
        select(
            row.tier,
            row.gpu_type,
            row.project_id,
            is_bid().label("is_bid"),
            func.sum(lived_ms * counts).label("lived_ms"),
            func.coalesce(func.sum(counts).filter(failed), 0.0).label("failures"),
        )
        .where(
            row.provider == provider,
            is_one_of(row.tier, sorted(Tier)),  # nobody here knows what a newer release rents in another way
            row.ready_ms.is_not(None),
            or_(row.state.not_in(GONE_NODE_STATES), row.ended_ms > now_ms - COUNTS_FOR_MS),
        )
        .group_by(row.tier, row.gpu_type, row.project_id, "is_bid")
        .order_by(row.tier, row.gpu_type, row.project_id, "is_bid")
    )
    return [_lived(provider, one) for one in found]


def _lived(provider: str, row: Any) -> Lived:
    tier, lived_ms, failures = read_as(Tier, row.tier), float(row.lived_ms), float(row.failures)
    return Lived(provider, tier, row.gpu_type, row.project_id, lived_ms, failures, row.is_bid)
