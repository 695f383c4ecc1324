"""From which running time on jobs leave a queue, by project, and the jobs that have ended since."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.elastic.kinds import ElasticKind
from app.core.elastic.queues import QueueThresholds
from app.core.model.job import TERMINAL_JOB_STATES
from app.core.model.snapshot import QueueMeans
from app.db.arrays import is_one_of
from app.db.tables import job_queues, jobs, queue_thresholds


@dataclass(frozen=True, slots=True)
class EndedInQueue:
    """A job that has ended and whose running time is not in the means yet."""

    job_id: str
    project_id: str
    kind: ElasticKind
    run_s: float


async def ended_in_queues(connection: AsyncConnection, *, limit: int) -> list[EndedInQueue]:
    """By id. One that never ran is none; it is marked as counted all the same."""
    rows = await connection.execute(
        select(job_queues.c.job_id, job_queues.c.project_id, job_queues.c.kind, jobs.c.ran_ms)
        .join(jobs, jobs.c.id == job_queues.c.job_id)
        .where(~job_queues.c.counted, is_one_of(jobs.c.state, TERMINAL_JOB_STATES))
        .order_by(job_queues.c.job_id)
        .limit(limit)
    )
    interactive = ElasticKind.INTERACTIVE
    return [
        EndedInQueue(
            row.job_id,
            row.project_id,
            interactive if row.kind == interactive else ElasticKind.BATCH,
            row.ran_ms / 1000,
        )
        for row in rows
    ]


async def set_counted(connection: AsyncConnection, job_id: str) -> bool:
    """That this one's running time is in the means. False: it was already."""
    found = await connection.execute(
        update(job_queues).where(job_queues.c.job_id == job_id, ~job_queues.c.counted).values(counted=True)
    )
    return bool(found.rowcount)


async def ended_unseen(connection: AsyncConnection, job_ids: Collection[str]) -> dict[str, float]:
    """Of these, the seconds that those ran that have ended and never stood beside an elastic job."""
    rows = await connection.execute(
        select(jobs.c.id, jobs.c.ran_ms)
        .outerjoin(job_queues, job_queues.c.job_id == jobs.c.id)
        .where(
            is_one_of(jobs.c.id, job_ids), is_one_of(jobs.c.state, TERMINAL_JOB_STATES), job_queues.c.job_id.is_(None)
        )
    )
    return {row.id: row.ran_ms / 1000 for row in rows}


async def queue_means(connection: AsyncConnection) -> tuple[QueueMeans, ...]:
    """Of all projects that have estimated them, by id. Means that make no sense are left out."""
    of, cold = queue_thresholds.c, QueueThresholds()
    rows = await connection.execute(
        select(of.project_id, of.interactive_s, of.batch_s)
        .where(or_(of.interactive_s != cold.interactive_s, of.batch_s != cold.batch_s))
        .order_by(of.project_id)
    )
    return tuple(QueueMeans(*row) for row in rows if all(0 < mean_s < math.inf for mean_s in row[1:]))


async def thresholds_of(connection: AsyncConnection, project_ids: Collection[str]) -> dict[str, QueueThresholds]:
    """Of the projects of which any are kept. Means that make no sense are left out."""
    of = queue_thresholds.c
    rows = await connection.execute(select(queue_thresholds).where(is_one_of(of.project_id, sorted(project_ids))))
    return {
        row.project_id: QueueThresholds(
            row.interactive_s,
            row.batch_s,
            (row.interactive_sum_s, row.batch_sum_s),
            (row.interactive_count, row.batch_count),
        )
        for row in rows
        if 0 < row.interactive_s < math.inf and 0 < row.batch_s < math.inf
    }


async def set_thresholds(connection: AsyncConnection, project_id: str, found: QueueThresholds, *, now_ms: int) -> None:
    values = {
        "interactive_s": found.interactive_s,
        "batch_s": found.batch_s,
        "interactive_sum_s": found.sums_s[0],
        "batch_sum_s": found.sums_s[1],
        "interactive_count": found.counts[0],
        "batch_count": found.counts[1],
        "updated_ms": now_ms,
    }
    fresh = insert(queue_thresholds).values(project_id=project_id, **values)
    await connection.execute(fresh.on_conflict_do_update(index_elements=["project_id"], set_=values))
