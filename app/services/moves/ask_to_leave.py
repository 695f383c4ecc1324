"""Take a job off its place, and let it wait for another one."""

from __future__ import annotations

from app.core.lifecycle import Outcome
from app.core.model.run import RunEnd, RunState
from app.db.connection import Connection
from app.db.jobs.steering import standings_of
from app.db.runs.live_runs import live_run_of_job, lock_run
from app.ports.clock import IdSource
from app.services.moves.ask_to_save import ask_to_save
from app.services.runs.end_run import end_run


async def ask_to_leave(connection: Connection, ids: IdSource, job_id: str, why: str, *, now_ms: int) -> None:
    """Running code saves at its next step and leaves; a run whose code does not run yet ends. The job is locked. One
    that leaves already, or has no place, stays as it is."""
    if await ask_to_save(connection, job_id, why, now_ms=now_ms):
        return
    run_id = await live_run_of_job(connection, job_id)
    run = None if run_id is None else await lock_run(connection, run_id)
    if run is None or run.state not in (RunState.ASSIGNED, RunState.STARTING):
        return
    job = (await standings_of(connection, [job_id]))[job_id]
    outcome = Outcome(RunEnd.DEMOTED, job.resting_state(), None, False, "called off before its code ran")
    await end_run(connection, ids, run.run_id, outcome, now_ms=now_ms)
