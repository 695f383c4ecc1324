"""Two jobs become one, and two again: rows and events. What that means for places is decided by the next snapshot."""

from __future__ import annotations

from app.control.context import ControlContext
from app.control.dropping import MovedOnError
from app.core.model.job import PLACEABLE_JOB_STATES, JobState
from app.core.model.merge import MergeMode
from app.core.model.plan import Merge, Split
from app.core.policy import ALLPASS_RULES
from app.db.connection import Connection
from app.db.decisions.enactment import PlacedJob, job_to_place
from app.db.merging.merges import add_merge, newest_checkpoint_of, open_merge_of
from app.db.transitions import Event, add_job_event
from app.services.merging.part_jobs import split_merge
from app.services.merging.watch_partner import tell_watcher
from app.services.moves.ask_to_leave import ask_to_leave


async def merge_jobs(connection: Connection, context: ControlContext, action: Merge, *, now_ms: int) -> None:
    """Both jobs are locked. Raises MovedOnError where they cannot be merged any more."""
    lead, companion = await _free(connection, action.job_id), await _free(connection, action.companion_id)
    if lead.project_id != companion.project_id:
        raise MovedOnError(f"{action.job_id} and {action.companion_id} are of different projects")
    together = action.mode is MergeMode.TOGETHER
    if not together and lead.state is JobState.RUNNING:
        waiting: tuple[PlacedJob, ...] = (companion,)
    else:
        waiting = (lead, companion)
    for job in waiting:
        if job.state not in PLACEABLE_JOB_STATES:
            raise MovedOnError(f"{job.job_id} does not wait for a place")
    for job in (lead, companion) if together else (companion,):
        if await newest_checkpoint_of(connection, job.job_id) is not None:
            raise MovedOnError(f"{job.job_id} has made progress of its own")
    merge_id = context.ids.new("merge")
    await add_merge(connection, merge_id, lead.project_id, action, now_ms=now_ms)
    facts = {"merge_id": merge_id, "mode": action.mode, "score": action.score, "gain": action.gain}
    for mine, other in ((action.job_id, action.companion_id), (action.companion_id, action.job_id)):
        event = Event("merged", action.reason, {**facts, "partner_id": other, "leads": mine == action.job_id})
        await add_job_event(connection, mine, event, now_ms=now_ms)
    await tell_watcher(connection, action.job_id)


async def split_jobs(connection: Connection, context: ControlContext, action: Split, *, now_ms: int) -> None:
    """Code that trains both saves and leaves; each then goes on by itself, from the best state that it had. Both jobs
    are locked. Raises MovedOnError when they are not merged any more."""
    merge = await open_merge_of(connection, action.job_id)
    if merge is None or merge.merge_id != action.merge_id:
        raise MovedOnError(f"{action.merge_id} is over")
    if merge.mode is MergeMode.TOGETHER:
        for job_id in (merge.lead_id, merge.companion_id):
            await ask_to_leave(connection, context.ids, job_id, action.reason, now_ms=now_ms)
    in_vain = merge.fruitless_epochs >= ALLPASS_RULES.merge_epochs
    await split_merge(connection, merge, action.reason, now_ms=now_ms, in_vain=in_vain)


async def _free(connection: Connection, job_id: str) -> PlacedJob:
    job = await job_to_place(connection, job_id)
    if job is None or job.leaving:
        raise MovedOnError(f"{job_id} is over, or is to leave")
    if await open_merge_of(connection, job_id) is not None:
        raise MovedOnError(f"{job_id} is merged already")
    return job
