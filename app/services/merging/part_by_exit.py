"""What the end of a process says about the two jobs that it has trained."""

from __future__ import annotations

from allpass.wire.agent import ExitReport
from app.core.lifecycle import Outcome
from app.core.model.job import JobState
from app.core.model.merge import MergeMode, MergeState
from app.core.model.run import RunEnd, RunState
from app.db.connection import Connection
from app.db.merging.merges import MergeRow, newest_merges
from app.db.runs.live_runs import RunRow, shared_process
from app.db.text import storable_text
from app.services.merging.part_jobs import split_merge


async def part_by_exit(
    connection: Connection, run: RunRow, job_id: str, exit_: ExitReport, *, now_ms: int
) -> Outcome | None:
    """The merge is split, and both jobs go on by themselves: when their code says that they do not help each other, and
    when it fails. Whose failure that is shows when each trains alone; nobody fails for the other's rows, or for memory
    that two take. None for every other end, and for a run that is alone: it is judged as any run's.
    """
    asked = run.state is RunState.STOPPING or exit_.saved_after_stop
    if not exit_.exit_code or (exit_.parted is None and asked):
        return None
    merge = await _merge_of(connection, run, job_id)
    if merge is None:
        return None
    failed = f"exit code {exit_.exit_code} of a process that trained two jobs"
    why = failed if exit_.parted is None else storable_text(exit_.parted)
    if merge.state is MergeState.OPEN:
        in_vain = exit_.parted is not None
        await split_merge(connection, merge, f"each goes on by itself: {why}", now_ms=now_ms, in_vain=in_vain)
    run_end = RunEnd.FAILED if exit_.parted is None else RunEnd.DEMOTED
    saved = exit_.saved_after_stop or exit_.parted is not None
    return Outcome(run_end, JobState.WAITING, None, False, f"goes on by itself: {why}", saved=saved)


async def _merge_of(connection: Connection, run: RunRow, job_id: str) -> MergeRow | None:
    """By which the run shared its process until now, or until the other side's end told the same."""
    merge = (await newest_merges(connection, [job_id])).get(job_id)
    if merge is None or merge.mode is not MergeMode.TOGETHER or merge.state not in (MergeState.OPEN, MergeState.SPLIT):
        return None
    return merge if await shared_process(connection, run.run_id) else None
