"""What layouts of runs are made of, and where they are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.arrays import is_one_of
from app.db.tables import jobs, run_jobs, runs


async def templates_of(connection: AsyncConnection, job_ids: Sequence[str]) -> dict[str, Any]:
    """By job, of those that state a training."""
    rows = await connection.execute(
        select(jobs.c.id, jobs.c.template).where(is_one_of(jobs.c.id, job_ids), jobs.c.plan.is_not(None))
    )
    return {row.id: row.template for row in rows}


async def keep_layout(connection: AsyncConnection, job_id: str, layout: Mapping[str, Any]) -> None:
    """With the job's newest run, for its agent to hand on."""
    newest = (
        select(run_jobs.c.run_id).where(run_jobs.c.job_id == job_id).order_by(run_jobs.c.epoch.desc()).limit(1)
    ).scalar_subquery()
    await connection.execute(update(runs).where(runs.c.id == newest).values(layout=dict(layout)))
