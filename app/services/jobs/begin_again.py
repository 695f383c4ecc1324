"""A job's own code failed: begin it again where its owner says so, or let it have failed, in words."""

from __future__ import annotations

from app.core.begin_again import back_off_ms, begin_again
from app.core.lifecycle import Outcome
from app.core.model.job import JobState
from app.db.connection import Connection
from app.db.jobs.retries import count_retry, tries_of
from app.db.jobs.steering import standings_of
from app.db.runs.live_runs import RunRow
from app.db.transitions import Event, add_job_event


async def after_own_failure(connection: Connection, run: RunRow, outcome: Outcome, *, now_ms: int) -> Outcome:
    """What the failure means, counted if the jobs go on. `outcome` is what it means where nobody has asked for more:
    that they have failed, or, for want of memory, are tried where there is more. The jobs are locked.

    A job whose time is used up has failed: there is none in which it could be tried again.
    """
    every = await tries_of(connection, run.job_ids)
    standings = await standings_of(connection, run.job_ids)
    if outcome.job_state is JobState.FAILED:
        if any(one.over_duration(now_ms) for one in standings.values()):
            return outcome
        meant = [begin_again(outcome, tries) for tries in every.values()]
        outcome = next((one for one in meant if one.job_state is JobState.FAILED), meant[0])
        if outcome.job_state is JobState.FAILED:
            return outcome
    for job_id, tries in every.items():
        if tries.allowed is None:
            continue
        not_before_ms = now_ms + back_off_ms(tries.used)
        await count_retry(connection, job_id, tries.step, not_before_ms=not_before_ms)
        facts = {"run_id": run.run_id, "retry": tries.used + 1, "retries": tries.allowed, "step": tries.step}
        event = Event("retry", f"failed: {outcome.message}", facts | {"kept_step": tries.kept_step})
        await add_job_event(connection, job_id, event, now_ms=now_ms)
    return outcome
