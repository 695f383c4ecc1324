"""Ask running code to save at its next step and leave."""

from __future__ import annotations

from app.core.model.job import JobState
from app.core.model.run import RunState, StopMode
from app.db.connection import Connection
from app.db.runs.live_runs import live_run_of_job, lock_run
from app.db.runs.members import gang_of, wake_gang
from app.db.transitions import Event, bump_desired, move_job, move_run


async def ask_to_save(connection: Connection, job_id: str, message: str, *, now_ms: int) -> bool:
    """Take the job's running run to `stopping(checkpoint)` and its jobs to `checkpointing`; its agent is told.

    False, with nothing written, when no run of this job is running. What becomes of the job is decided by `end_run`.
    """
    run_id = await live_run_of_job(connection, job_id)
    run = None if run_id is None else await lock_run(connection, run_id)
    if run is None or run.state is not RunState.RUNNING:
        return False
    asked = {"stop_mode": StopMode.CHECKPOINT, "stop_asked_ms": now_ms}
    await move_run(connection, run.run_id, RunState.STOPPING, Event("run_stopping", message), now_ms=now_ms, **asked)
    saving = Event(JobState.CHECKPOINTING, message, {"run_id": run.run_id})
    for one in run.job_ids:
        await move_job(connection, one, JobState.CHECKPOINTING, saving, now_ms=now_ms)
    await bump_desired(connection, run.node_id)
    if run.node_rank is not None:
        await wake_gang(connection, await gang_of(connection, run.run_id))
    return True
