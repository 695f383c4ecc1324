"""What a profile run has found becomes known of its job's task; whatever it found, the job goes back to the queue."""

from __future__ import annotations

from allpass.wire.agent import ExitReport, ProfileFound
from app.core.lifecycle import Outcome
from app.core.merging.transfer import is_profile
from app.core.model.job import JobState
from app.core.model.run import RunEnd, RunPurpose, RunState, StopMode
from app.db.connection import Connection
from app.db.merging.recipes import set_profile, task_of
from app.db.runs.live_runs import RunRow
from app.db.text import storable_text


async def judge_profile(connection: Connection, run: RunRow, exit_: ExitReport, *, now_ms: int) -> Outcome | None:
    """Keeps what the run measured of its job's task, where that is a profile. The job waits for a place either way: it
    is not to blame, and not looked at again. None for a run that trained, or that was to be gone at once."""
    if run.purpose is not RunPurpose.PROFILE or run.stop_mode is StopMode.KILL:
        return None
    (job_id,) = run.job_ids
    why = _refused(exit_)
    task = None if why is not None else await task_of(connection, job_id)
    if task is None or exit_.profile is None:
        end = RunEnd.DEMOTED if run.state is RunState.STOPPING else RunEnd.FAILED
        told = f"could not be profiled, and is trained without: {why or 'its task has changed'}"
        return Outcome(end, JobState.WAITING, None, False, told)
    found = exit_.profile
    await keep_found(connection, task, found, now_ms=now_ms)
    return Outcome(RunEnd.FINISHED, JobState.WAITING, None, False, f"is profiled: {found.rows} rows were looked at")


async def keep_found(connection: Connection, task: tuple[str, str], found: ProfileFound, *, now_ms: int) -> None:
    """What a run measured is known of the task (`task_of`) from now on. The caller has checked that it is a profile."""
    await set_profile(
        connection,
        task,
        fisher=found.fisher,
        pull=found.pull,
        rows=found.rows,
        tokens=found.tokens,
        now_ms=now_ms,
    )


def _refused(exit_: ExitReport) -> str | None:
    if exit_.environment_error is not None:
        return storable_text(exit_.environment_error)
    if exit_.exit_code is None:
        return "the process vanished" if exit_.signal is None else f"the process was killed by signal {exit_.signal}"
    if exit_.exit_code != 0:
        return f"exit code {exit_.exit_code}"
    if exit_.profile is None:
        return "it ended without a profile"
    if not is_profile(exit_.profile.fisher, exit_.profile.pull):
        return "what it measured cannot be compared: numbers that are infinite or none, or all zero"
    return None
