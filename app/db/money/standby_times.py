"""The times in which machines were lent by jobs that stand by."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.billing import StandbyTime
from app.db.arrays import is_one_of
from app.db.tables import allocations, standbys


async def standbys_of_nodes(
    connection: AsyncConnection, node_ids: Collection[str]
) -> dict[str, tuple[StandbyTime, ...]]:
    """By node, in their order. One ends when a run holds the node again; else with the node, which is given to nobody
    else."""
    of = standbys.c
    again = (
        select(func.min(allocations.c.from_ms))
        .where(allocations.c.node_id == of.node_id, allocations.c.from_ms >= of.left_ms)
        .correlate(standbys)
        .scalar_subquery()
    )
    rows = await connection.execute(
        select(of.node_id, of.left_ms, again.label("to_ms"), of.rebate_parts)
        .where(is_one_of(of.node_id, node_ids), of.left_ms.is_not(None))
        .order_by(of.node_id, of.left_ms, of.id)
    )
    found: dict[str, tuple[StandbyTime, ...]] = {}
    for row in rows:
        found[row.node_id] = (*found.get(row.node_id, ()), StandbyTime(row.left_ms, row.to_ms, row.rebate_parts))
    return found
