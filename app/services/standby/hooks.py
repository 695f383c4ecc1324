"""Where standbys take part in the life of a run: it has left GPUs that are lent, or begins on them again."""

from __future__ import annotations

from allpass.wire.agent import ExitReport
from app.core.lifecycle import Outcome
from app.core.model.job import PLACEABLE_JOB_STATES, TERMINAL_JOB_STATES, JobState
from app.core.model.node import NodeState
from app.core.model.run import RunEnd, RunState
from app.db.connection import Connection
from app.db.decisions.enactment import node_tier
from app.db.runs.live_runs import RunRow
from app.db.runs.progress import done_by
from app.db.standby.standbys import StandbyRow, change_standby, open_standby_of
from app.db.standby.windows import end_windows_of
from app.db.transitions import Event, add_job_event
from app.services.kit.capability import Capability

_FORGIVEN = 2  # failures to begin again; the next one counts as that of any run
LENT = "gpus_lent_out"
JOB_IS_OVER = "its job is over"


class StandbyHooks(Capability):
    async def judge_exit(
        self, connection: Connection, run: RunRow, job_id: str, exit_: ExitReport, *, now_ms: int
    ) -> Outcome | None:
        """A process that comes back and ends before it has made a step is a fault of ours, not of the job, which ran
        before. It is tried again there once, and then elsewhere. One that was asked to leave, or that is done, is
        judged as any."""
        row = await open_standby_of(connection, job_id)
        if row is None or not _came_back(row, run) or exit_.exit_code == 0:
            return None
        if row.failures >= _FORGIVEN or await _step_of(connection, job_id) > row.left_step:
            return None
        how = exit_.environment_error or f"its process ended ({_how(exit_)})"
        await change_standby(connection, row.standby_id, failures=row.failures + 1)
        told = f"could not go on after it stood by: {how}; a fault of the service: it is tried again"
        return Outcome(RunEnd.FAILED, JobState.WAITING, None, False, told)

    async def end_run(self, connection: Connection, run: RunRow, job_id: str, outcome: Outcome, *, now_ms: int) -> None:
        """From the end of its run on its GPUs are lent, if its machine is there. A run that had come back and ended
        before it was settled gives them to nobody."""
        row = await open_standby_of(connection, job_id)
        if row is None or row.over_why is not None or outcome.job_state not in PLACEABLE_JOB_STATES:
            return
        if row.left_ms is None:
            await _leave(connection, row, run, now_ms=now_ms)
        elif run.node_id == row.node_id and row.failures >= _FORGIVEN:
            await change_standby(
                connection, row.standby_id, over_why="it could not begin again there; it goes on elsewhere"
            )

    async def stop_job(self, connection: Connection, job_id: str, state: JobState, *, now_ms: int) -> None:
        """Paused or over: it does not come back. Of one that is over no window comes again."""
        if state in TERMINAL_JOB_STATES:
            await end_windows_of(connection, job_id, JOB_IS_OVER, now_ms=now_ms)
        row = await open_standby_of(connection, job_id)
        if row is not None and row.over_why is None:
            called_ms = now_ms if row.called_ms is None else row.called_ms
            why = f"its job is {state}" if state is JobState.PAUSED else f"its job has {state}"
            await change_standby(connection, row.standby_id, over_why=why, called_ms=called_ms)


async def _leave(connection: Connection, row: StandbyRow, run: RunRow, *, now_ms: int) -> None:
    node = await node_tier(connection, row.node_id)
    if run.node_id != row.node_id or node is None or node[0] is not NodeState.READY:
        over = {"over_why": "its machine is not there any more; it goes on elsewhere", "called_ms": now_ms}
        await change_standby(connection, row.standby_id, **over)
        return
    left_step = await _step_of(connection, row.job_id)
    await change_standby(connection, row.standby_id, left_ms=now_ms, left_step=left_step)
    told = f"has left its {row.gpus} GPU{'s' * (row.gpus != 1)} to spot jobs, at step {left_step}"
    data = {"standby_id": row.standby_id, "gpus": row.gpus, "step": left_step}
    await add_job_event(connection, row.job_id, Event(LENT, told, data), now_ms=now_ms)


def _came_back(row: StandbyRow, run: RunRow) -> bool:
    is_there = row.left_ms is not None and row.called_ms is not None and run.node_id == row.node_id
    return is_there and row.over_why is None and run.state is not RunState.STOPPING


async def _step_of(connection: Connection, job_id: str) -> int:
    return (await done_by(connection, (job_id,)))[job_id].steps


def _how(exit_: ExitReport) -> str:
    if exit_.signal is not None:
        return f"signal {exit_.signal}"
    return "nobody saw how" if exit_.exit_code is None else f"exit code {exit_.exit_code}"
