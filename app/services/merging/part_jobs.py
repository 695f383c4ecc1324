"""What becomes of a merge when one of its jobs is over or paused, and of the other job."""

from __future__ import annotations

from app.core.lifecycle import Outcome
from app.core.model.job import PLACEABLE_JOB_STATES, JobState
from app.core.model.merge import MergeMode, MergeState
from app.core.model.run import RunEnd, RunState
from app.db.connection import Connection
from app.db.merging.merges import MergeRow, close_merge, newest_checkpoint_of, open_merge_of
from app.db.runs.live_runs import RunRow, mate_of
from app.db.transitions import Event, add_job_event
from app.services.merging.watch_partner import tell_watcher

_BOTH_END = frozenset({RunEnd.NODE_LOST, RunEnd.PREEMPTED})
_BECAME = {
    JobState.SUCCEEDED: "has succeeded",
    JobState.FAILED: "has failed",
    JobState.CANCELLED: "was cancelled",
    JobState.PAUSED: "is paused",
}


async def part_from_partner(connection: Connection, job_id: str, state: JobState, *, now_ms: int) -> None:
    """The job is in `state` now, which is final or `paused`: it is merged with nobody any more. Both jobs are locked.

    In turn, a lead that has succeeded leaves its newest checkpoint to the companion, which begins from what it holds
    learned. However else one leaves, the other is on its own, with what it has.
    """
    merge = await open_merge_of(connection, job_id)
    if merge is None:
        return
    partner_id, became = merge.partner_of(job_id), f"{job_id} {_BECAME[state]}"
    if merge.mode is MergeMode.IN_TURN and merge.leads(job_id) and state is JobState.SUCCEEDED:
        await _hand_on(connection, merge, became, now_ms=now_ms)
        return
    finished = merge.mode is MergeMode.TOGETHER and state is JobState.SUCCEEDED
    await close_merge(
        connection, merge.merge_id, MergeState.ENDED if finished else MergeState.VOID, became, now_ms=now_ms
    )
    if not merge.leads(job_id):
        await tell_watcher(connection, merge.lead_id)
    goes_on = "trains on alone" if merge.mode is MergeMode.TOGETHER else _goes_on(merge, partner_id)
    await _tell(connection, merge, partner_id, "merge_ended", f"{goes_on}: {became}", now_ms=now_ms)


async def leave_mate(connection: Connection, run: RunRow, job_id: str, outcome: Outcome, *, now_ms: int) -> None:
    """The job waits for another place. Where it has left a process in which another one trains on, each goes its own
    way. Both jobs are locked."""
    if outcome.job_state not in PLACEABLE_JOB_STATES or not await _leaves_its_mate(connection, run, outcome):
        return
    merge = await open_merge_of(connection, job_id)
    if merge is None or merge.mode is not MergeMode.TOGETHER:
        return
    why = outcome.message
    await close_merge(connection, merge.merge_id, MergeState.VOID, why, now_ms=now_ms)
    partner_id = merge.partner_of(job_id)
    await _tell(connection, merge, partner_id, "merge_ended", f"trains on alone: {job_id} {why}", now_ms=now_ms)
    await _tell(connection, merge, job_id, "merge_ended", f"goes on by itself: {why}", now_ms=now_ms)


async def split_merge(connection: Connection, merge: MergeRow, why: str, *, now_ms: int, in_vain: bool) -> None:
    """These two are not merged with each other again. `in_vain`: since neither learned from it what helps the other,
    which is a lesson. Both jobs are locked."""
    gain = 0.0 if in_vain else None
    if await close_merge(connection, merge.merge_id, MergeState.SPLIT, why, now_ms=now_ms, seen_gain=gain):
        await tell_watcher(connection, merge.lead_id)
        for job_id in (merge.lead_id, merge.companion_id):
            await _tell(connection, merge, job_id, "merge_split", why, now_ms=now_ms)


async def _leaves_its_mate(connection: Connection, run: RunRow, outcome: Outcome) -> bool:
    """Whether the other run of its process trains on. Where the process itself has ended, or its machine, that one's
    agent is about to say so too, and the two are placed together again."""
    process_over = outcome.run_end in _BOTH_END or (outcome.run_end is RunEnd.FAILED and run.running_ms is not None)
    return not process_over and await mate_of(connection, run.run_id) not in (None, RunState.STOPPING)


async def _hand_on(connection: Connection, merge: MergeRow, became: str, *, now_ms: int) -> None:
    """A lead without a checkpoint has nothing to leave."""
    checkpoint_id = await newest_checkpoint_of(connection, merge.lead_id)
    if checkpoint_id is None:
        why = f"{became} without a checkpoint"
        await close_merge(connection, merge.merge_id, MergeState.VOID, why, now_ms=now_ms)
        await _tell(connection, merge, merge.companion_id, "merge_ended", f"starts by itself: {why}", now_ms=now_ms)
        return
    await close_merge(connection, merge.merge_id, MergeState.ENDED, became, now_ms=now_ms, checkpoint_id=checkpoint_id)
    told = f"its turn has come: {became}, and it begins from what that has learned"
    await _tell(connection, merge, merge.companion_id, "turn_has_come", told, now_ms=now_ms)
    left = f"{merge.companion_id} begins from what it has learned"
    await _tell(connection, merge, merge.lead_id, "merge_ended", left, now_ms=now_ms)


def _goes_on(merge: MergeRow, partner_id: str) -> str:
    return "goes on alone" if merge.leads(partner_id) else "starts by itself"


async def _tell(connection: Connection, merge: MergeRow, job_id: str, kind: str, told: str, *, now_ms: int) -> None:
    facts = {"merge_id": merge.merge_id, "partner_id": merge.partner_of(job_id)}
    await add_job_event(connection, job_id, Event(kind, told, facts), now_ms=now_ms)
