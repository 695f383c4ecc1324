"""Links that a job's code tells of."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import jobs


async def set_links(connection: AsyncConnection, job_id: str, epoch: int, links: Mapping[str, str]) -> None:
    """Those of the newest run that told any take the place of all before. The epoch is the fence."""
    await connection.execute(update(jobs).where(jobs.c.id == job_id, jobs.c.epoch == epoch).values(links=dict(links)))
