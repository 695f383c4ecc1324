"""What spot jobs pay of the price of machines, as far as their bills are unread."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.node import Tier
from app.core.spot_share import SpotShare
from app.db.arrays import is_one_of
from app.db.tables import nodes, pool_spot_shares


async def shares_of_nodes(connection: AsyncConnection, node_ids: Collection[str]) -> dict[str, tuple[SpotShare, ...]]:
    """Of machines of pools: the shares that touch what is unread of their bills, by time. Others are left out."""
    of = pool_spot_shares.c
    ours = (nodes.c.tier == Tier.OWN) & (of.launcher == nodes.c.provider) & (of.pool == nodes.c.region)
    # A last reading may end, and look, a little before the end of the one before it.
    again_ms = func.least(nodes.c.metered_until_ms, nodes.c.billed_to_ms) - 1
    began_ms = case((nodes.c.metered_until_ms.is_(None), nodes.c.billed_from_ms), else_=again_ms)
    since_ms = select(func.max(of.from_ms)).where(ours, of.from_ms <= began_ms).correlate(nodes).scalar_subquery()
    rows = await connection.execute(
        select(nodes.c.id, of.from_ms, of.parts)
        .join(pool_spot_shares, ours)
        .where(is_one_of(nodes.c.id, node_ids), of.from_ms >= func.coalesce(since_ms, 0))
        .order_by(nodes.c.id, of.from_ms)
    )
    found: dict[str, tuple[SpotShare, ...]] = {}
    for row in rows:
        found[row.id] = (*found.get(row.id, ()), SpotShare(row.from_ms, row.parts))
    return found
