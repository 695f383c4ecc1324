"""One process of a job on several machines has failed: why, is known when all of them are over.

The others cannot go on, and are stopped at once. Each of them may say why it ended, but one on a machine that is gone:
then that was why, and no code is blamed. Of several that failed, one that only lost its connection to the others is
believed last.

One that left as a process does that was asked to (code 75, or by a SIGTERM that it does not heed) may have been asked
on its machine, before we hear of that: the others are asked to save and leave as well, rather than killed while they
save."""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from allpass.training.session import EXIT_STOPPED
from allpass.wire.agent import ExitReport
from app.core import codec
from app.core.lifecycle import Outcome
from app.core.model.job import JobEnd, JobState
from app.core.model.run import RunEnd, RunState
from app.db.connection import Connection
from app.db.runs.live_runs import RunRow, live_runs_of_node, lock_run
from app.db.runs.members import LEFT, GangRun, gang_of, set_exit_told, wake_gang
from app.ports.clock import IdSource
from app.services.jobs.begin_again import after_own_failure
from app.services.runs.end_run import end_run

_LOST_THE_OTHERS = re.compile(
    r"connection (closed|reset|refused|was)|closed by peer|broken pipe|timed? ?out|nccl|gloo|process ?group|tcpstore"
    r"|store\.|collective",
    re.IGNORECASE,
)


_TAKEN_AWAY = "one of its machines is being taken away: all of them were left"


async def note_exit(
    connection: Connection, ids: IdSource, run: RunRow, outcome: Outcome, exit_: ExitReport, *, now_ms: int
) -> None:
    """The process of this locked run has failed, if by nothing but `outcome`. It may have been killed by its agent, as
    others had failed before. Repeating it is harmless."""
    gang = await gang_of(connection, run.run_id)
    mine = next((one for one in gang if one.run_id == run.run_id), None)
    if mine is None:
        return
    if mine.exit_told is None:
        await set_exit_told(connection, run.run_id, codec.encode(outcome) | _how(exit_), now_ms=now_ms)
        gang = await gang_of(connection, run.run_id)
        await wake_gang(connection, gang)
    await settle_exits(connection, ids, gang, now_ms=now_ms)


def _how(exit_: ExitReport) -> dict[str, bool]:
    asked = exit_.exit_code == EXIT_STOPPED or exit_.signal == signal.SIGTERM
    return {"killed": exit_.killed, LEFT: asked and not exit_.killed}


async def settle_exits(
    connection: Connection, ids: IdSource, gang: list[GangRun], *, now_ms: int, waits: bool = True
) -> None:
    """End the run of all, once one has failed and all others are over, or on machines that are silent: these were why,
    then. A machine that is only silent, while no process has failed, is waited for as that of any job. Not `waits`: the
    others have had the time that it takes, and are judged by what was heard."""
    failed = [one for one in gang if one.exit_told is not None]
    silent = [one for one in gang if one.exit_told is None and one.is_silent]
    if not failed or (waits and len(failed) + len(silent) < len(gang)):
        return
    if silent:
        why = f"machine {silent[0].rank} of its job is silent, and its other processes have lost it"
        outcome = Outcome(RunEnd.NODE_LOST, JobState.WAITING, None, False, why)
        await end_run(connection, ids, silent[0].lead_id, outcome, now_ms=now_ms)
        return
    blamed = min(failed, key=_innocence)
    outcome = codec.decode_row(Outcome, blamed.exit_told)
    lead = await lock_run(connection, blamed.lead_id)
    have_left = all(one.has_left for one in failed)
    is_asked = any(one.is_left for one in gang) or (have_left and lead is not None and lead.state is RunState.STOPPING)
    if lead is not None and is_asked:  # its agent asked its process, and that all others
        outcome = Outcome(RunEnd.PREEMPTED, JobState.WAITING, None, False, _TAKEN_AWAY)
    elif blamed.rank:
        outcome = replace(outcome, message=f"machine {blamed.rank} of its job: {outcome.message}")
    if lead is not None and outcome.job_end is JobEnd.USER_CODE_FAILED:
        outcome = await after_own_failure(connection, lead, outcome, now_ms=now_ms)
    await end_run(connection, ids, blamed.lead_id, outcome, now_ms=now_ms)


def _innocence(one: GangRun) -> tuple[bool, bool, bool, int, int]:
    """Who was killed for others, or lost them, is not to blame, nor who left rather than one that failed; of the rest,
    the first that was heard of."""
    told = one.exit_told
    lost = bool(_LOST_THE_OTHERS.search(str(told.get("message", ""))))
    return bool(told.get("killed")), lost, one.has_left, one.exit_told_ms, one.rank


async def settle_silent(connection: Connection, ids: IdSource, node_id: str, *, now_ms: int) -> None:
    """A machine has fallen silent. It is locked, with the jobs that it has."""
    for run_id in await live_runs_of_node(connection, node_id):
        await settle_exits(connection, ids, await gang_of(connection, run_id), now_ms=now_ms)


async def settle_late(connection: Connection, ids: IdSource, run_id: str, *, now_ms: int) -> None:
    """Its process failed a while ago, and others still have not said their end, though their machines are heard."""
    if await lock_run(connection, run_id) is not None:
        await settle_exits(connection, ids, await gang_of(connection, run_id), now_ms=now_ms, waits=False)
