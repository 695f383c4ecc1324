"""How long a run has to save, once it was asked to leave."""

from __future__ import annotations

from sqlalchemy import ColumnElement, select

from app.core.model.node import Tier
from app.core.model.pool import MOST_GRACE_MS, SHORTEST_GRACE_MS
from app.db.tables import nodes, pools, runs


def own_grace_ms() -> ColumnElement[int | None]:
    """Of a run on a node, both of which are in the statement: what its pool gives it, where it leaves for another job;
    NULL: what the service gives."""
    return (
        select(pools.c.grace_ms)
        .where(
            runs.c.evicted_for_job_id.is_not(None),
            nodes.c.tier == Tier.OWN,
            pools.c.launcher == nodes.c.provider,
            pools.c.name == nodes.c.region,
            pools.c.grace_ms.between(SHORTEST_GRACE_MS, MOST_GRACE_MS),  # whatever somebody wrote there
        )
        .correlate(runs, nodes)
        .scalar_subquery()
    )
