"""How often jobs may be begun again after failures of their own, and how often they were."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.begin_again import Tries
from app.db.arrays import is_one_of
from app.db.tables import jobs


async def tries_of(connection: AsyncConnection, job_ids: Sequence[str]) -> dict[str, Tries]:
    """By job, in the order of their ids. The jobs are locked already."""
    columns = jobs.c.retries, jobs.c.retried, jobs.c.failed_step, jobs.c.step, jobs.c.checkpoint_step
    rows = await connection.execute(
        select(jobs.c.id, *columns).where(is_one_of(jobs.c.id, job_ids)).order_by(jobs.c.id)
    )
    return {row.id: Tries(row.retries, row.retried, row.failed_step, row.step, row.checkpoint_step) for row in rows}


async def count_retry(connection: AsyncConnection, job_id: str, step: int, *, not_before_ms: int) -> None:
    """One more is used up, by a failure at that step; the next try is not before then."""
    await connection.execute(
        update(jobs)
        .where(jobs.c.id == job_id)
        .values(
            retried=jobs.c.retried + 1,
            failed_step=step,
            not_before_ms=func.greatest(jobs.c.not_before_ms, not_before_ms),
        )
    )
