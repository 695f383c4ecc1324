"""Which machines a job on several is on now, by rank."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.pool import JOINED
from app.core.model.run import RunState
from app.db.tables import allocations, nodes, run_jobs, runs


@dataclass(frozen=True, slots=True)
class SeatRow:
    """`host_id`: of the host of a pool that it is on; None for other machines."""

    rank: int
    host_id: str | None
    network_bits_per_s: int | None


async def seats_of(connection: AsyncConnection, job_id: str) -> list[SeatRow]:
    """None for a job that does not run, or runs on one machine."""
    rows = await connection.execute(
        select(runs.c.node_rank, runs.c.network_bits_per_s, nodes.c.provider, nodes.c.host)
        .join(run_jobs, run_jobs.c.run_id == runs.c.id)
        .join(allocations, (allocations.c.run_id == runs.c.id) & allocations.c.to_ms.is_(None))
        .join(nodes, nodes.c.id == allocations.c.node_id)
        .where(run_jobs.c.job_id == job_id, runs.c.node_rank.is_not(None), runs.c.state != RunState.ENDED)
        .order_by(runs.c.node_rank)
    )
    return [
        SeatRow(
            row.node_rank,
            row.host.partition("/")[0] if row.provider == JOINED and row.host else None,
            row.network_bits_per_s,
        )
        for row in rows
    ]
