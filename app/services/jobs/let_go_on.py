"""Let a job go on that was held for a reason which is no longer there, without anybody asking for it."""

from __future__ import annotations

from app.core.model.job import TERMINAL_JOB_STATES, JobState, PauseReason
from app.core.steering import refuse_resume, why_paused
from app.db.connection import Connection
from app.db.jobs.steering import change_job, lock_standing
from app.db.transitions import Event, add_job_event, move_job


async def let_go_on(connection: Connection, job_id: str, held_for: PauseReason, why: str, *, now_ms: int) -> None:
    """A job that its own limit would stop again stays paused, for that reason; one that still saves to be paused goes
    on when that is done. Nothing for a job that is not held for this reason."""
    job = await lock_standing(connection, job_id)
    if job is None or job.pause_reason is not held_for or job.state in TERMINAL_JOB_STATES:
        return
    if job.over_cost():
        reason = PauseReason.COST_CAP
        columns = {"pause_reason": reason}
        paused = {"wait_reason": why_paused(job, reason)} if job.state is JobState.PAUSED else {}
        await change_job(connection, job_id, columns | paused)
    elif job.state is not JobState.PAUSED:
        await change_job(connection, job_id, {"pause_reason": None})
        await add_job_event(connection, job_id, Event("resumed", why), now_ms=now_ms)
    elif refuse_resume(job, now_ms) is None:
        state = job.resting_state()
        event = Event("resumed", why, {"state": state})
        await move_job(connection, job_id, state, event, now_ms=now_ms, pause_reason=None, wait_reason=None)
