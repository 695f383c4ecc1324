"""When machines end by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.node import NodeState
from app.db.tables import nodes

# Of a short life, at most this part is kept for leaving: else a run would leave before it has done anything.
_PART_FOR_LEAVING = 4


@dataclass(frozen=True, slots=True)
class SelfEndingNode:
    """A ready node that ends by itself."""

    node_id: str
    requested_ms: int
    ends_ms: int

    def margin_ms(self, asked_ms: int) -> int:
        """How long before its end it is left: as long as asked for, but of a short life a part only."""
        return min(asked_ms, (self.ends_ms - self.requested_ms) // _PART_FOR_LEAVING)


async def ending_nodes(connection: AsyncConnection, *, now_ms: int, margin_ms: int) -> list[SelfEndingNode]:
    """Ready nodes that end within the margin, by id."""
    lives_ms = nodes.c.ends_ms - nodes.c.requested_ms
    margin = func.least(margin_ms, lives_ms / _PART_FOR_LEAVING)
    rows = await connection.execute(
        select(nodes.c.id, nodes.c.requested_ms, nodes.c.ends_ms)
        .where(nodes.c.state == NodeState.READY, nodes.c.ends_ms.is_not(None), nodes.c.ends_ms - margin <= now_ms)
        .order_by(nodes.c.id)
    )
    return [SelfEndingNode(row.id, row.requested_ms, row.ends_ms) for row in rows]


def ends_soon(row: Row[Any], now_ms: int, margin_ms: int) -> bool:
    """Of a node's row: the same question."""
    if row.state != NodeState.READY or row.ends_ms is None:
        return False
    return bool(row.ends_ms - SelfEndingNode(row.id, row.requested_ms, row.ends_ms).margin_ms(margin_ms) <= now_ms)
