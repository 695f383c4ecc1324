"""When jobs will be done, as far as their present runs have measured it."""

from __future__ import annotations

from collections.abc import Sequence

from app.core.model.job import JobState
from app.core.progress import estimate_finish_ms
from app.db.handles import Connection
from app.db.job_reads import JobRow
from app.db.pace import paces_of


async def estimate_finish(connection: Connection, jobs: Sequence[JobRow], *, now_ms: int) -> dict[str, int]:
    """By job id, for running jobs whose number of steps is known and whose present run has measured two of them."""
    running = [job for job in jobs if job.state is JobState.RUNNING and job.total_steps is not None]
    if not running:
        return {}
    paces = await paces_of(connection, [job.id for job in running])
    found = {job.id: estimate_finish_ms(now_ms, job.step, job.total_steps, paces.get(job.id)) for job in running}
    return {job_id: finish_ms for job_id, finish_ms in found.items() if finish_ms is not None}
