"""Let a paused job go on from its newest checkpoint."""

from __future__ import annotations

from app.core.gang_wishes import asks_as_wanted
from app.core.model.job import TERMINAL_JOB_STATES, JobState
from app.core.steering import refuse_resume
from app.db.connection import Connection
from app.db.decisions.item_failures import delete_failures_of
from app.db.jobs.steering import change_job, lock_standing, read_asks
from app.db.transitions import Event, add_job_event, move_job
from app.errors import Conflict, NotFound


async def resume_job(connection: Connection, project_id: str, job_id: str, *, now_ms: int) -> None:
    """A paused job wants a place again; one that still saves to be paused goes on instead.

    Resuming a job that is not paused changes nothing. Raises NotFound; Conflict for a job that is over, and for one
    whose limit would stop it again (`param` names the limit).
    """
    job = await lock_standing(connection, job_id, project_id=project_id)
    if job is None:
        raise NotFound(f"there is no job {job_id!r} in this project")
    if job.state in TERMINAL_JOB_STATES:
        raise Conflict(f"{job_id} has {job.state} and cannot go on; submit it again")
    if job.state is not JobState.PAUSED and job.pause_reason is None:
        return
    refusal = refuse_resume(job, now_ms)
    if refusal is not None:
        raise Conflict(refusal.message, param=refusal.param)
    if job.state is not JobState.PAUSED:
        await change_job(connection, job_id, {"pause_reason": None})
        told = Event("resumed", "resumed by its owner while it saves: goes on when that is done")
        await add_job_event(connection, job_id, told, now_ms=now_ms)
        return
    asks = asks_as_wanted(await read_asks(connection, job_id))
    if asks is not None:
        await change_job(connection, job_id, {"resources": asks})
    await delete_failures_of(connection, job_id)  # what the service failed at is tried anew
    state = job.resting_state()
    event = Event("resumed", "resumed by its owner", {"state": state})
    await move_job(connection, job_id, state, event, now_ms=now_ms, pause_reason=None, wait_reason=None)
