"""How much disk the jobs of a node will need there, as far as it is known before they run."""

from __future__ import annotations

from sqlalchemy import select, union_all
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.checkpoint import CheckpointState
from app.core.model.run import RunState
from app.db.tables import allocations, checkpoints, nodes, run_jobs, runs


async def checkpoint_sizes(connection: AsyncConnection, node_id: str) -> dict[str, int]:
    """Of the jobs that are on a node, or that it was rented for: the size of each one's newest checkpoint."""
    on_it = (
        select(run_jobs.c.job_id)
        .join(runs, runs.c.id == run_jobs.c.run_id)
        .join(allocations, allocations.c.run_id == runs.c.id)
        .where(allocations.c.node_id == node_id, allocations.c.to_ms.is_(None), runs.c.state != RunState.ENDED)
    )
    rented_for = select(nodes.c.rented_for_job_id).where(nodes.c.id == node_id)
    theirs = union_all(on_it, rented_for).subquery()
    newest = (
        select(checkpoints.c.job_id, checkpoints.c.size_bytes)
        .ext(distinct_on(checkpoints.c.job_id))
        .where(checkpoints.c.state == CheckpointState.COMMITTED, checkpoints.c.job_id.in_(select(theirs.c.job_id)))
        .order_by(checkpoints.c.job_id, checkpoints.c.step.desc())
    )
    rows = await connection.execute(newest)
    return {row.job_id: row.size_bytes for row in rows}
