"""When machines end by themselves."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.node import GONE_NODE_STATES, NodeState, Tier
from app.db.arrays import is_one_of
from app.db.tables import nodes

# Of a short life, at most this part is kept for leaving: else a run would leave before it has done anything.
_PART_FOR_LEAVING = 4


@dataclass(frozen=True, slots=True)
class SelfEndingNode:
    """A ready node that ends by itself."""

    node_id: str
    requested_ms: int
    ends_ms: int
    drained_ms: int | None = None

    def margin_ms(self, asked_ms: int) -> int:
        """How long before its end it is left: as long as asked for, but of a short life a part only; where its owner
        wants it empty, since that was said."""
        if self.drained_ms is not None:
            return max(0, self.ends_ms - self.drained_ms)
        return min(asked_ms, (self.ends_ms - self.requested_ms) // _PART_FOR_LEAVING)


async def ending_nodes(connection: AsyncConnection, *, now_ms: int, margin_ms: int) -> list[SelfEndingNode]:
    """Ready nodes that end within the margin, by id."""
    lives_ms = nodes.c.ends_ms - nodes.c.requested_ms
    margin = func.least(margin_ms, lives_ms / _PART_FOR_LEAVING)
    near = (nodes.c.ends_ms - margin <= now_ms) | nodes.c.drained_ms.is_not(None)
    rows = await connection.execute(
        select(nodes.c.id, nodes.c.requested_ms, nodes.c.ends_ms, nodes.c.drained_ms)
        .where(nodes.c.state == NodeState.READY, nodes.c.ends_ms.is_not(None), near)
        .order_by(nodes.c.id)
    )
    return [_ending(row) for row in rows]


def ends_soon(row: Row[Any], now_ms: int, margin_ms: int) -> bool:
    """Of a node's row: the same question."""
    if row.state != NodeState.READY or row.ends_ms is None:
        return False
    return bool(row.ends_ms - _ending(row).margin_ms(margin_ms) <= now_ms)


def _ending(row: Any) -> SelfEndingNode:
    return SelfEndingNode(row.id, row.requested_ms, row.ends_ms, row.drained_ms)


async def set_end(connection: AsyncConnection, node_ids: Collection[str], ends_ms: int | None, *, now_ms: int) -> None:
    """Their owner wants these nodes empty by then; None: not any more."""
    await connection.execute(
        update(nodes).where(is_one_of(nodes.c.id, sorted(node_ids))).values(**_wanted(ends_ms, now_ms))
    )


async def set_ends_of_pool(
    connection: AsyncConnection, launcher: str, pool: str, ends_ms: int | None, *, drained: bool, now_ms: int
) -> None:
    """When the nodes of a pool have to be gone; None: when their machines end, as their launcher lists them next.
    `drained`: because their owner wants them empty."""
    of = nodes.c
    here = (of.provider == launcher, of.region == pool, of.tier == Tier.OWN, of.state.not_in(GONE_NODE_STATES))
    later = of.ends_ms.is_(None) | (of.ends_ms > ends_ms) if ends_ms is not None else of.drained_ms.is_not(None)
    values = _wanted(ends_ms, now_ms) if drained or ends_ms is None else {"ends_ms": ends_ms}
    await connection.execute(update(nodes).where(*here, later).values(**values))


def _wanted(ends_ms: int | None, now_ms: int) -> dict[str, Any]:
    since = None if ends_ms is None else func.coalesce(nodes.c.drained_ms, now_ms)
    return {"ends_ms": ends_ms, "drained_ms": since}
