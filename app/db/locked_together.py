"""Which jobs are locked with a job: what each capability adds to the doors of `lock_order` (ADR 0078).

The one list of these hooks. A hook names all jobs that the given ones are joined to, by plain reads: it locks
nothing and writes nothing. It is asked before the jobs are locked and again under their locks, and what it says must
only change under the locks of all jobs that it names. The doors are below the packages of `app.db`, so its query stands
here rather than in the package of its capability.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.merge import MergeState
from app.db.arrays import is_one_of
from app.db.tables import merges

LockedTogether = Callable[[AsyncConnection, Collection[str]], Awaitable[set[str]]]


async def merged_with(connection: AsyncConnection, job_ids: Collection[str]) -> set[str]:
    """The jobs of open merges with one of these: the end of one is news for the other, and their merge opens and closes
    under the locks of both."""
    lead, companion = merges.c.lead_job_id, merges.c.companion_job_id
    rows = await connection.execute(
        select(lead, companion).where(
            merges.c.state == MergeState.OPEN, or_(is_one_of(lead, job_ids), is_one_of(companion, job_ids))
        )
    )
    return {job_id for row in rows for job_id in row}


LOCKED_TOGETHER: tuple[LockedTogether, ...] = (merged_with,)
