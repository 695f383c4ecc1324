"""Hold jobs to the limits that their users set: what they may cost, and how long they may take."""

from __future__ import annotations

from app.control.parts import ControlParts
from app.core.lifecycle import Outcome
from app.core.model.job import PLACEABLE_JOB_STATES, JobEnd, JobState, PauseReason
from app.core.model.run import RunEnd, RunState, StopMode
from app.db.caps import CappedJob, capped_jobs, lock_capped
from app.db.handles import Connection
from app.db.runs import live_run_of_job, lock_run
from app.db.transitions import Event, bump_desired, move_job, move_run
from app.services.end_run import end_run


async def hold_to_caps(parts: ControlParts) -> int:
    """Deal with every job that is at a limit, each in its own transaction; returns how many there were.

    Cost: running code saves a checkpoint and leaves, and the job is then paused until its limit is raised. What has
    no code running is paused at once. Duration, counted from when its code first ran: the job fails.
    """
    now_ms = parts.clock.now_ms()
    async with parts.database.transaction() as connection:
        job_ids = await capped_jobs(connection, now_ms=now_ms)
    for job_id in job_ids:
        async with parts.database.transaction() as connection:
            await parts.leader.guard(connection)
            job = await lock_capped(connection, job_id)
            if job.over_duration(now_ms):
                await _end(connection, parts, job, now_ms=now_ms)
            elif job.over_cost():
                await _pause(connection, parts, job, now_ms=now_ms)
    return len(job_ids)


async def _end(connection: Connection, parts: ControlParts, job: CappedJob, *, now_ms: int) -> None:
    assert job.max_duration_ms is not None
    message = f"took longer than its max_duration of {job.max_duration_ms // 1000} s"
    outcome = Outcome(RunEnd.CAPPED, JobState.FAILED, JobEnd.MAX_DURATION, False, message)
    run_id = await live_run_of_job(connection, job.job_id)
    if run_id is not None:
        await end_run(connection, parts.ids, run_id, outcome, now_ms=now_ms)
        return
    event = Event(JobState.FAILED, message, {"reason": JobEnd.MAX_DURATION})
    columns = {"end_reason": JobEnd.MAX_DURATION, "end_message": message, "ended_ms": now_ms, "wait_reason": None}
    await move_job(connection, job.job_id, JobState.FAILED, event, now_ms=now_ms, **columns)


async def _pause(connection: Connection, parts: ControlParts, job: CappedJob, *, now_ms: int) -> None:
    message = f"has cost {job.spent} of at most {job.max_cost}: goes on when max_cost is raised"
    if job.state is JobState.RUNNING:
        await _ask_to_save(connection, job, message, now_ms=now_ms)
        return
    run_id = await live_run_of_job(connection, job.job_id)
    if run_id is not None:
        # Nothing has run yet, so there is nothing to save.
        ran = job.first_running_ms is not None
        state = JobState.WAITING if ran else JobState.QUEUED
        outcome = Outcome(RunEnd.CAPPED, state, None, False, message)
        await end_run(connection, parts.ids, run_id, outcome, now_ms=now_ms)
    if run_id is not None or job.state in PLACEABLE_JOB_STATES:
        event = Event(JobState.PAUSED, message, {"reason": PauseReason.COST_CAP})
        columns = {"pause_reason": PauseReason.COST_CAP, "wait_reason": message}
        await move_job(connection, job.job_id, JobState.PAUSED, event, now_ms=now_ms, **columns)


async def _ask_to_save(connection: Connection, job: CappedJob, message: str, *, now_ms: int) -> None:
    run_id = await live_run_of_job(connection, job.job_id)
    run = None if run_id is None else await lock_run(connection, run_id)
    if run is None or run.state is not RunState.RUNNING:
        return
    asked = {"stop_mode": StopMode.CHECKPOINT, "stop_asked_ms": now_ms}
    await move_run(connection, run.run_id, RunState.STOPPING, Event("run_stopping", message), now_ms=now_ms, **asked)
    saving = Event(JobState.CHECKPOINTING, message, {"run_id": run.run_id})
    for job_id in run.job_ids:
        await move_job(connection, job_id, JobState.CHECKPOINTING, saving, now_ms=now_ms)
    await bump_desired(connection, run.node_id)
