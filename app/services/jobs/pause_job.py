"""Pause a job because its owner wants it."""

from __future__ import annotations

from app.core.model.job import TERMINAL_JOB_STATES, JobState, PauseReason
from app.core.saving import HOW_TO_SAVE
from app.db.checkpoints.unsaved import at_risk
from app.db.connection import Connection
from app.db.jobs.steering import lock_standing
from app.errors import Conflict, NotFound
from app.ports.clock import IdSource
from app.services.jobs.hold_job import hold_job

WOULD_LOSE_STEPS = "steps_would_be_lost"


async def pause_job(
    connection: Connection, ids: IdSource, project_id: str, job_id: str, *, lose_steps: bool = False, now_ms: int
) -> None:
    """A job without running code is paused at once; running code saves first.

    Pausing a job that is paused, for whatever reason, or about to be changes nothing. Raises NotFound, and Conflict for
    a job that is over, and for one whose checkpoints are not kept, or whose code does not say that it saves when it is
    asked to: pausing it would lose what it has done since the last one, which its owner has to want (`lose_steps`).
    """
    job = await lock_standing(connection, job_id, project_id=project_id)
    if job is None:
        raise NotFound(f"there is no job {job_id!r} in this project")
    if job.state in TERMINAL_JOB_STATES:
        raise Conflict(f"{job_id} has {job.state}: there is nothing left to pause")
    if job.state is JobState.RUNNING and job.pause_reason is None and not lose_steps:
        await _check_kept(connection, job_id, now_ms=now_ms)
    await hold_job(connection, ids, job, PauseReason.USER, now_ms=now_ms)


async def _check_kept(connection: Connection, job_id: str, *, now_ms: int) -> None:
    risk = await at_risk(connection, job_id, now_ms=now_ms)
    why, lost = risk.would_leave_without, risk.lost
    if why is None or lost is None:
        return
    way_out = "Mend that and wait" if risk.why is not None else f"For the next job: {HOW_TO_SAVE}. For this one, wait"
    raise Conflict(
        f"lose_steps: pausing {job_id} now would lose {lost}: it is at step {risk.step}, and what it has done since "
        f"{risk.since()} would not be kept: {why}. {way_out} for the next checkpoint, or pause it with "
        "lose_steps: true",
        param="lose_steps",
        code=WOULD_LOSE_STEPS,
    )
