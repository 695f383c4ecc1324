"""Pause a job because its owner wants it."""

from __future__ import annotations

from app.core.model.job import TERMINAL_JOB_STATES, PauseReason
from app.db.handles import Connection
from app.db.steering import lock_standing
from app.errors import Conflict, NotFound
from app.ports.clock import IdSource
from app.services.hold_job import hold_job


async def pause_job(connection: Connection, ids: IdSource, project_id: str, job_id: str, *, now_ms: int) -> None:
    """A job without running code is paused at once; running code saves first.

    Pausing a job that is paused, for whatever reason, or about to be changes nothing. Raises NotFound, and Conflict for
    a job that is over.
    """
    job = await lock_standing(connection, job_id, project_id=project_id)
    if job is None:
        raise NotFound(f"there is no job {job_id!r} in this project")
    if job.state in TERMINAL_JOB_STATES:
        raise Conflict(f"{job_id} has {job.state}: there is nothing left to pause")
    await hold_job(connection, ids, job, PauseReason.USER, now_ms=now_ms)
