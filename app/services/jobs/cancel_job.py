"""Cancel a job: at once, whatever it is doing."""

from __future__ import annotations

from app.core.lifecycle import Outcome
from app.core.model.job import TERMINAL_JOB_STATES, JobEnd, JobState
from app.core.model.run import RunEnd
from app.db.connection import Connection
from app.db.jobs.reads import lock_state
from app.db.runs.live_runs import live_run_of_job
from app.db.transitions import Event, move_job
from app.errors import Conflict, InvariantBroken, NotFound
from app.ports.clock import IdSource
from app.services.runs.capabilities import tell_job_stopped
from app.services.runs.end_run import end_run

_MESSAGE = "cancelled by its owner"


async def cancel_job(connection: Connection, ids: IdSource, project_id: str, job_id: str, *, now_ms: int) -> None:
    """Nothing that a run of this job still sends counts from now on, and its agent is told to kill it.

    Cancelling twice is harmless. Raises NotFound, and Conflict for a job that succeeded or failed before.
    """
    state = await lock_state(connection, project_id, job_id)
    if state is None:
        raise NotFound(f"there is no job {job_id!r} in this project")
    if state is JobState.CANCELLED:
        return
    if state in TERMINAL_JOB_STATES:
        raise Conflict(f"{job_id} has {state}: there is nothing left to cancel")
    run_id = await live_run_of_job(connection, job_id)
    if run_id is not None:
        outcome = Outcome(RunEnd.CANCELLED, JobState.CANCELLED, JobEnd.CANCELLED, False, _MESSAGE)
        ended = await end_run(connection, ids, run_id, outcome, now_ms=now_ms)
    else:
        ended = await move_job(
            connection,
            job_id,
            JobState.CANCELLED,
            Event(JobState.CANCELLED, _MESSAGE, {"reason": JobEnd.CANCELLED}),
            now_ms=now_ms,
            end_reason=JobEnd.CANCELLED,
            end_message=_MESSAGE,
            ended_ms=now_ms,
            wait_reason=None,
        )
        await tell_job_stopped(connection, job_id, JobState.CANCELLED, now_ms=now_ms)
    if not ended:
        raise InvariantBroken(f"{job_id} is {state}, its row is locked, and yet it could not be cancelled")
