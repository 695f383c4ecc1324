"""The machines are about to end, all of them: each job saves and leaves its place, and waits for another one.

This is a planned move without a next machine: it is no fault of any job.
"""

from __future__ import annotations

from app.core.lifecycle import Outcome
from app.core.model.job import JobEnd, JobState
from app.core.model.run import RunEnd, RunState, StopMode
from app.db.connection import Connection
from app.db.jobs.steering import lock_standing
from app.db.runs.live_runs import live_run_of_job, lock_run
from app.ports.clock import IdSource
from app.services.moves.advance_move import drop_move
from app.services.moves.ask_to_save import ask_to_save
from app.services.runs.end_run import end_run

_WITH_A_PLACE = frozenset({JobState.STARTING, JobState.RUNNING})
_NO_CODE_YET = frozenset({RunState.ASSIGNED, RunState.STARTING, RunState.PROMOTING})


async def ask_to_clear(connection: Connection, ids: IdSource, job_id: str, why: str, *, now_ms: int) -> None:
    """Running code saves at its next step and leaves; where none runs yet, the run ends at once. A move is called off.
    One that leaves already stays as it is: repeating this is harmless."""
    job = await lock_standing(connection, job_id)
    if job is None or job.state not in _WITH_A_PLACE:
        return
    if await drop_move(connection, ids, job_id, why, now_ms=now_ms):
        return
    if await ask_to_save(connection, job_id, why, now_ms=now_ms):
        return
    run_id = await live_run_of_job(connection, job_id)
    run = None if run_id is None else await lock_run(connection, run_id)
    if run is not None and run.state in _NO_CODE_YET:
        outcome = Outcome(RunEnd.DEMOTED, job.resting_state(), None, False, f"{why} (its code did not run yet)")
        await end_run(connection, ids, run.run_id, outcome, now_ms=now_ms)


async def clear_by_force(connection: Connection, ids: IdSource, run_id: str, why: str, *, now_ms: int) -> None:
    """Whatever the run still does counts no more; its job goes on from its newest checkpoint. One that was to be killed
    is."""
    run = await lock_run(connection, run_id)
    if run is None:
        return
    outcome = Outcome(RunEnd.DEMOTED, JobState.WAITING, None, False, why)
    if run.stop_mode is StopMode.KILL:
        outcome = Outcome(RunEnd.CANCELLED, JobState.CANCELLED, JobEnd.CANCELLED, False, why)
    await end_run(connection, ids, run_id, outcome, now_ms=now_ms)
