"""The versions of libraries that a fine-tuning began with."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import jobs, runs


async def set_libraries(
    connection: AsyncConnection, run_id: str, job_id: str, epoch: int, libraries: Mapping[str, str]
) -> None:
    """What a run has that goes on from something never takes the place of what was begun with. The epoch is the
    fence."""
    resumed = select(runs.c.resumed_checkpoint_id).where(runs.c.id == run_id).scalar_subquery()
    is_open = or_(jobs.c.libraries.is_(None), resumed.is_(None))
    await connection.execute(
        update(jobs).where(jobs.c.id == job_id, jobs.c.epoch == epoch, is_open).values(libraries=dict(libraries))
    )
