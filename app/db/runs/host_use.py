"""What is on hosts of pools, and what has happened there, for whoever ranks them (`app.core.host_ranking`)."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.eviction import DecayedCount
from app.core.eviction.placing import HALF_LIFE_MS
from app.core.host_ranking import HostUse
from app.core.model.job import PriorityClass
from app.core.model.pool import JOINED
from app.core.model.run import RunEnd
from app.db.tables import allocations, jobs, nodes, run_jobs, runs

_REMEMBERED_MS = 10 * HALF_LIFE_MS  # a thousandth is left of an eviction that is older
_MOST = 10_000  # evictions, the newest


async def host_use(connection: AsyncConnection, *, now_ms: int) -> HostUse:
    host = func.split_part(nodes.c.host, "/", 1).label("host")
    on_hosts = (
        select(host)
        .select_from(allocations)
        .join(nodes, nodes.c.id == allocations.c.node_id)
        .where(nodes.c.provider == JOINED, nodes.c.host != "")
    )
    guaranteed = await connection.execute(
        on_hosts.add_columns(func.count(jobs.c.id.distinct()).label("number"))
        .join(run_jobs, run_jobs.c.run_id == allocations.c.run_id)
        .join(jobs, jobs.c.id == run_jobs.c.job_id)
        .where(allocations.c.to_ms.is_(None), jobs.c.priority_class == PriorityClass.GUARANTEED)
        .group_by(host)
    )
    evicted = await connection.execute(
        on_hosts.add_columns(func.max(runs.c.ended_ms).label("ended_ms"))
        .join(runs, runs.c.id == allocations.c.run_id)
        .where(
            *(runs.c.evicted_for_job_id.is_not(None), runs.c.end_reason == RunEnd.PREEMPTED),
            runs.c.ended_ms > now_ms - _REMEMBERED_MS,
        )
        .group_by(host, runs.c.id)
        .order_by(func.max(runs.c.ended_ms).desc())
        .limit(_MOST)
    )
    counts: dict[str, DecayedCount] = {}
    for row in reversed(evicted.all()):
        counts[row.host] = counts.get(row.host, DecayedCount()).one_more(row.ended_ms)
    return HostUse({row.host: row.number for row in guaranteed}, counts)
