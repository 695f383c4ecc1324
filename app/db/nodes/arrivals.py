"""What first jobs took to begin on machines that came up lately, and what such machines cost beside their hours."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Float, case, cast, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.arrivals import Arrived
from app.core.foreign import read_as
from app.core.machine_lives import HALF_LIFE_MS
from app.core.model.node import Tier
from app.db.arrays import is_one_of
from app.db.tables import allocations, nodes, runs

_MOST_NODES = 200  # of a provider, the newest: what was so last week says little, and a listing waits for the answer
_HOUR_MS = 3_600_000


async def arrived_lately(connection: AsyncConnection, provider: str, *, now_ms: int) -> list[Arrived]:
    """By tier and project. Of each machine the first run counts that went from its preparation to user code by itself;
    the target of a move waits for its source meanwhile."""
    node, run = nodes.c, runs.c
    newest = (
        select(node.id, node.tier, node.project_id, node.gpu_count, node.ready_ms, _beside().label("micros"))
        .where(
            node.provider == provider,
            is_one_of(node.tier, sorted(Tier)),  # nobody here knows what a newer release rents in another way
            node.ready_ms > now_ms - HALF_LIFE_MS,
        )
        .order_by(node.ready_ms.desc(), node.id)
        .limit(_MOST_NODES)
        .subquery()
    )
    first = (
        select(run.running_ms, run.created_ms)
        .join(allocations, allocations.c.run_id == run.id)
        .where(
            allocations.c.node_id == newest.c.id,
            run.starting_ms < run.running_ms,
            run.companion_of.is_(None),
            run.member_of.is_(None),
        )
        .order_by(run.created_ms, run.id)
        .limit(1)
        .lateral()
    )
    took_ms = func.greatest(0, first.c.running_ms - func.greatest(first.c.created_ms, newest.c.ready_ms))
    found = await connection.execute(
        select(
            newest.c.tier,
            newest.c.project_id,
            func.count().label("count"),
            func.sum(took_ms).label("took_ms"),
            func.sum(cast(newest.c.micros, Float) / newest.c.gpu_count).label("micros"),
        )
        .select_from(newest.join(first, first.c.running_ms.is_not(None)))
        .group_by(newest.c.tier, newest.c.project_id)
        .order_by(newest.c.tier, newest.c.project_id)
    )
    return [_arrived(provider, one) for one in found]


def _beside() -> Any:
    """What the closed bill of a machine exceeds its hours by, where its company charges for bytes."""
    row = nodes.c
    charges = cast(func.coalesce(row.offer["traffic_micros_per_gb"].astext, "0"), BigInteger) > 0
    hours = cast(row.price_micros_per_hour, Float) * (row.billed_to_ms - row.billed_from_ms) / _HOUR_MS
    known = charges & row.meter_closed & row.billed_from_ms.is_not(None) & row.billed_to_ms.is_not(None)
    return case((known, func.greatest(0.0, row.metered_micros - hours)), else_=0.0)


def _arrived(provider: str, row: Any) -> Arrived:
    return Arrived(
        provider, read_as(Tier, row.tier), row.project_id, float(row.count), float(row.took_ms), float(row.micros)
    )
