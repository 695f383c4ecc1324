"""Hold jobs to the limits that their users set: what they may cost, and how long they may take."""

from __future__ import annotations

from app.control.context import ControlContext
from app.control.each import each
from app.core.lifecycle import Outcome
from app.core.model.health import Chore
from app.core.model.job import TERMINAL_JOB_STATES, JobEnd, JobState, PauseReason
from app.core.model.run import RunEnd
from app.core.steering import JobStanding, duration_used_up
from app.db.checkpoints.unsaved import at_risk
from app.db.connection import Connection
from app.db.jobs.caps import LIMIT_NEAR, capped_jobs, jobs_near_a_cap
from app.db.jobs.steering import lock_standing
from app.db.runs.live_runs import live_run_of_job
from app.db.transitions import Event, add_job_event, move_job
from app.services.jobs.hold_job import hold_job
from app.services.moves.advance_move import drop_move
from app.services.moves.ask_to_save import ask_to_save
from app.services.runs.capabilities import tell_job_stopped
from app.services.runs.end_run import end_run

_HAS_LEFT = TERMINAL_JOB_STATES | {JobState.PAUSED}


async def hold_to_caps(context: ControlContext) -> int:
    """Deal with every job that is at a limit, each in its own transaction; returns how many there were.

    Running code saves a checkpoint and leaves in either case. Cost: the job is then paused until its limit is raised
    and it is resumed. Duration, counted from when its code first ran: the job is then cancelled.
    """
    now_ms = context.clock.now_ms()
    async with context.database.transaction() as connection:
        job_ids = await capped_jobs(connection, now_ms=now_ms)

    async def hold(connection: Connection, job_id: str) -> None:
        job = await lock_standing(connection, job_id)
        if job is None or job.state in _HAS_LEFT:
            return
        if job.over_duration(now_ms):
            await _end(connection, context, job, now_ms=now_ms)
        elif job.over_cost():
            await hold_job(connection, context.ids, job, PauseReason.COST_CAP, now_ms=now_ms)

    async def warn(connection: Connection, job_id: str) -> None:
        job = await lock_standing(connection, job_id)
        if job is not None and job.state is JobState.RUNNING:
            await _tell_what_will_be_lost(connection, job, now_ms=now_ms)

    await each(context, Chore.CAPS, job_ids, hold)
    async with context.database.transaction() as connection:
        near = await jobs_near_a_cap(connection, now_ms=now_ms)
    await each(context, Chore.CAPS, near, warn)
    return len(job_ids)


async def _tell_what_will_be_lost(connection: Connection, job: JobStanding, *, now_ms: int) -> None:
    """While its owner can still raise the limit. Nothing for a job that saves."""
    loss = (await at_risk(connection, job.job_id, now_ms=now_ms)).loss
    if loss is None:
        return
    limits = {"max_cost_micros": None if job.max_cost is None else job.max_cost.micros}
    data = {**limits, "max_duration_ms": job.max_duration_ms}
    await add_job_event(
        connection, job.job_id, Event(LIMIT_NEAR, f"{job.nearest_limit()}; {loss}", data), now_ms=now_ms
    )


async def _end(connection: Connection, context: ControlContext, job: JobStanding, *, now_ms: int) -> None:
    """`end_run` cancels the job when the run has ended, because its time is used up; until then it may get more."""
    message = duration_used_up(job)
    if job.state is JobState.CHECKPOINTING:
        return
    if job.state is JobState.RUNNING and await _let_it_save(connection, context, job, message, now_ms=now_ms):
        return
    run_id = await live_run_of_job(connection, job.job_id)
    if run_id is not None:
        outcome = Outcome(RunEnd.DEMOTED, job.resting_state(), None, False, "called off before its code ran")
        await end_run(connection, context.ids, run_id, outcome, now_ms=now_ms)
        return
    event = Event(JobState.CANCELLED, message, {"reason": JobEnd.MAX_DURATION})
    columns = {"end_reason": JobEnd.MAX_DURATION, "end_message": message, "ended_ms": now_ms, "wait_reason": None}
    await move_job(connection, job.job_id, JobState.CANCELLED, event, now_ms=now_ms, **columns)
    await tell_job_stopped(connection, job.job_id, JobState.CANCELLED, now_ms=now_ms)


async def _let_it_save(
    connection: Connection, context: ControlContext, job: JobStanding, message: str, *, now_ms: int
) -> bool:
    """False when no code runs that could: the job is between the two machines of a move."""
    loss = (await at_risk(connection, job.job_id, now_ms=now_ms)).loss
    asked = f"{message}: " + ("saves at the next step, then ends" if loss is None else f"leaves and ends; {loss}")
    if await drop_move(connection, context.ids, job.job_id, asked, now_ms=now_ms):
        return True
    return await ask_to_save(connection, job.job_id, asked, now_ms=now_ms)
