"""Take a job off its machine and pause it, for whatever reason: its code saves first."""

from __future__ import annotations

from app.core.lifecycle import Outcome
from app.core.model.job import PLACEABLE_JOB_STATES, TERMINAL_JOB_STATES, JobState, PauseReason
from app.core.model.run import RunEnd
from app.core.steering import JobStanding, why_paused
from app.db.checkpoints.unsaved import at_risk
from app.db.connection import Connection
from app.db.jobs.steering import change_job
from app.db.runs.live_runs import live_run_of_job
from app.db.transitions import Event, add_job_event, move_job
from app.errors import InvariantBroken
from app.ports.clock import IdSource
from app.services.moves.advance_move import drop_move
from app.services.moves.ask_to_save import ask_to_save
from app.services.runs.capabilities import tell_job_stopped
from app.services.runs.end_run import end_run


async def hold_job(
    connection: Connection, ids: IdSource, job: JobStanding, reason: PauseReason, *, now_ms: int, why: str | None = None
) -> None:
    """Pause a job whose row is locked: at once when no code of it runs, else as soon as it has saved and left.

    The wish is kept in `jobs.pause_reason`, which `end_run` reads: however the run ends, unless for good, the job is
    then paused. A job that is paused, or was asked to, stays as it is. The job must not be over. `why`: what is told
    in the place of the reason.
    """
    if job.state in TERMINAL_JOB_STATES:
        raise InvariantBroken(f"{job.job_id} has {job.state} and cannot be paused")
    if job.state is JobState.PAUSED or job.pause_reason is not None:
        return
    if job.state in PLACEABLE_JOB_STATES:
        await _pause_at_once(connection, job, reason, now_ms=now_ms)
        return
    await change_job(connection, job.job_id, {"pause_reason": reason})
    if job.state is JobState.STARTING:
        await _call_off(connection, ids, job, now_ms=now_ms)
    elif job.state is JobState.RUNNING:
        await _let_it_save(connection, ids, job, reason, why, now_ms=now_ms)
    else:
        await _tell(connection, job, reason, why, now_ms=now_ms)


async def _let_it_save(
    connection: Connection, ids: IdSource, job: JobStanding, reason: PauseReason, why: str | None, *, now_ms: int
) -> None:
    """A move that is under way is called off. Between its two machines no code runs: there is nothing to save."""
    asked = _asked(job, reason, why, (await at_risk(connection, job.job_id, now_ms=now_ms)).loss)
    if await drop_move(connection, ids, job.job_id, asked, now_ms=now_ms):
        await _tell(connection, job, reason, why, now_ms=now_ms)
    elif not await ask_to_save(connection, job.job_id, asked, now_ms=now_ms):
        await _call_off(connection, ids, job, now_ms=now_ms)


async def _tell(connection: Connection, job: JobStanding, reason: PauseReason, why: str | None, *, now_ms: int) -> None:
    told = Event("pause_asked", _asked(job, reason, why), {"reason": reason})
    await add_job_event(connection, job.job_id, told, now_ms=now_ms)


async def _pause_at_once(connection: Connection, job: JobStanding, reason: PauseReason, *, now_ms: int) -> None:
    message = why_paused(job, reason)
    event = Event(JobState.PAUSED, message, {"reason": reason})
    columns = {"pause_reason": reason, "wait_reason": message}
    await move_job(connection, job.job_id, JobState.PAUSED, event, now_ms=now_ms, **columns)
    await tell_job_stopped(connection, job.job_id, JobState.PAUSED, now_ms=now_ms)


async def _call_off(connection: Connection, ids: IdSource, job: JobStanding, *, now_ms: int) -> None:
    """Its code does not run yet, so there is nothing to save: the run ends, and with it what it would have cost."""
    run_id = await live_run_of_job(connection, job.job_id)
    if run_id is None:
        raise InvariantBroken(f"{job.job_id} is {job.state} and has no run")
    outcome = Outcome(RunEnd.DEMOTED, job.resting_state(), None, False, "called off before its code ran")
    await end_run(connection, ids, run_id, outcome, now_ms=now_ms)


def _asked(job: JobStanding, reason: PauseReason, why: str | None, loss: str | None = None) -> str:
    how = "saves at the next step, leaves and is paused" if loss is None else f"leaves and is paused; {loss}"
    if why is not None:
        return f"{why}: {how}"
    if reason is PauseReason.USER:
        return f"its owner pauses it: {how}"
    if reason is PauseReason.INTERNAL_ERROR:
        return f"the service fails on it: {how}"
    if reason is PauseReason.DAY_LIMIT:
        return f"the installation has spent at real providers what it may in a day: {how}"
    if reason is PauseReason.BUDGET:
        return f"a budget is used up: {how}"
    return f"has cost {job.spent} of at most {job.max_cost}: {how}"
