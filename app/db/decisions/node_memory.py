"""The nodes of one reader that are not gone: read once, and again when something of them has changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from functools import partial
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.arrivals import with_arrivals
from app.core.foreign import read_as
from app.core.machine_lives import with_lives
from app.core.model.money import Money
from app.core.model.node import GONE_NODE_STATES, MOST_GPUS, NodeState, Tier
from app.core.model.offer import Offer
from app.core.model.snapshot import NodeView
from app.db.arrays import is_one_of
from app.db.bids import is_bid
from app.db.nodes.lifetimes import ends_soon
from app.db.tables import allocations, nodes
from app.db.unreadable import RowReading

_SEEN = [
    nodes.c[name]
    for name in [
        "id",
        "project_id",
        "provider",
        "tier",
        "state",
        "row_version",
        "gpu_type",
        "gpu_count",
        "gpu_memory_bytes",
        "cpus",
        "memory_bytes",
        "price_micros_per_hour",
        "requested_ms",
        "expected_ready_ms",
        "idle_since_ms",
        "region",
        "image",
        "ends_ms",
        "drained_ms",
    ]
] + [is_bid().label("is_bid")]


class NodeMemory:
    """Used by one reader, one reading after the other."""

    def __init__(self) -> None:
        self._rows: dict[str, Row[Any]] = {}
        self._held: defaultdict[str, set[int]] = defaultdict(set)
        self._views: dict[str, NodeView] = {}

    async def read(
        self,
        connection: AsyncConnection,
        changed: Collection[str] | None,
        now_ms: int,
        usual_image: str,
        lifetime_margin_ms: int,
        offers: Collection[Offer],
        reading: RowReading,
    ) -> tuple[NodeView, ...]:
        """All that can be read, by id. `changed` is None where any may have changed."""
        if changed is None or changed:
            await self._refresh(connection, changed)
        fresh: dict[str, NodeView] = {}
        for node_id, row in self._rows.items():
            if node_id in self._views and row.ends_ms is None:
                fresh[node_id] = self._views[node_id]
                continue
            asked = (row, self._held[node_id], now_ms, usual_image, lifetime_margin_ms)
            view = reading.of(nodes.name, node_id, partial(node_view, *asked))
            if view is None:
                reading.node_ids.add(node_id)
                reading.hidden_tiers.append(row.tier)
            else:
                fresh[node_id] = view
        self._views = {view.node_id: view for view in with_arrivals(with_lives(fresh.values(), offers), offers)}
        return tuple(self._views.values())

    async def _refresh(self, connection: AsyncConnection, changed: Collection[str] | None) -> None:
        rented = select(*_SEEN).where(nodes.c.state.not_in(GONE_NODE_STATES), ~nodes.c.orphan)
        taken = select(allocations.c.node_id, allocations.c.gpu_indices).where(allocations.c.to_ms.is_(None))
        if changed is None:
            self._rows, self._views = {}, {}
            self._held = defaultdict(set)
        else:
            ids = sorted(changed)
            rented = rented.where(is_one_of(nodes.c.id, ids))
            taken = taken.where(is_one_of(allocations.c.node_id, ids))
            for node_id in ids:
                for known in (self._rows, self._views, self._held):
                    known.pop(node_id, None)
        for row in await connection.execute(rented):
            self._rows[row.id] = row
        for node_id, gpu_indices in await connection.execute(taken):
            self._held[node_id].update(gpu_indices)
        self._rows = dict(sorted(self._rows.items()))


def node_view(row: Row[Any], held: set[int], now_ms: int, usual_image: str, lifetime_margin_ms: int) -> NodeView:
    """A node's row as a decision sees it. `held`: the GPUs that a live allocation has."""
    if not 1 <= row.gpu_count <= MOST_GPUS:
        raise ValueError(f"a machine of {row.gpu_count} GPUs")
    leaving = ends_soon(row, now_ms, lifetime_margin_ms)
    return NodeView(
        node_id=row.id,
        project_id=row.project_id,
        provider=row.provider,
        tier=read_as(Tier, row.tier),
        state=NodeState.DRAINING if leaving else read_as(NodeState, row.state),
        row_version=row.row_version,
        gpu_type=row.gpu_type,
        gpu_count=row.gpu_count,
        gpu_memory_bytes=row.gpu_memory_bytes,
        cpus=row.cpus,
        memory_bytes=row.memory_bytes,
        free_gpus=tuple(index for index in range(row.gpu_count) if index not in held),
        price_per_hour=Money(row.price_micros_per_hour),
        requested_ms=row.requested_ms,
        expected_ready_ms=row.expected_ready_ms,
        idle_since_ms=row.idle_since_ms,
        region=row.region,
        image="" if row.image == usual_image else row.image,
        spot_only=row.is_bid,
    )
