"""A run that trains looks at its own task first, where nobody knows it: so jobs that come later may go on from it."""

from __future__ import annotations

from allpass.wire.agent import RunReport
from app.core.merging.own_profile import profiles_itself
from app.core.merging.transfer import is_profile
from app.core.model.run import RunPurpose, RunState
from app.core.policy import ALLPASS_RULES
from app.db.connection import Connection
from app.db.decisions.snapshots import read_job
from app.db.engine import Database
from app.db.merging.recipes import task_of, was_interrupted
from app.db.runs.desired_state import RunOrder
from app.services.merging.end_profile import keep_found
from app.settings import Settings

_BEFORE_ITS_CODE = (RunState.ASSIGNED, RunState.STARTING)


async def is_to_look(connection: Connection, settings: Settings, order: RunOrder, *, now_ms: int) -> bool:
    """Whether the run is to look at its task as it begins: the first that trains a job whose task is not known, by
    itself, with merging on. Not after a fault: should a look ever end a process, it does so once."""
    alone = order.companion is None and order.companion_of is None
    if not settings.merging or order.purpose is not RunPurpose.TRAIN or not alone:
        return False
    if order.state not in _BEFORE_ITS_CODE or await was_interrupted(connection, order.job_id):
        return False
    job = await read_job(connection, order.job_id, now_ms)
    least_ms = settings.policy_rules.get("merge_own_least_ms", ALLPASS_RULES.merge_own_least_ms)
    return job is not None and profiles_itself(job, least_ms)


async def take_own_profile(database: Database, report: RunReport, *, now_ms: int) -> None:
    """What the run has found becomes known of its job's task. What cannot be compared is left out, and so is what a run
    says whose job has gone on without it; saying the same again changes nothing."""
    found = report.profile
    if found is None or not is_profile(found.fisher, found.pull):
        return
    async with database.transaction() as connection:
        task = await task_of(connection, report.job_id, epoch=report.epoch)
        if task is not None:
            await keep_found(connection, task, found, now_ms=now_ms)
