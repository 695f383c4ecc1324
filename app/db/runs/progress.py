"""How far a run has got: taken up, running, at which step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.job import JobState
from app.core.model.run import RunPurpose, RunState
from app.core.progress import believed_total
from app.db.arrays import is_one_of
from app.db.tables import jobs, run_jobs, runs
from app.db.transitions import Event, move_job, move_run

_RAISE_STEP = (
    update(jobs)
    .where(jobs.c.id == bindparam("job_id"), jobs.c.epoch == bindparam("at_epoch"), jobs.c.step < bindparam("to_step"))
    .values(step=bindparam("to_step"))
)
STATED_STEPS = jobs.c.template[("training", "steps")].astext
"""Of a job's template; for `stated_steps`."""
_LARGEST_DIGITS = 18  # of a number that the database can count with
_TOTALS = select(jobs.c.step, jobs.c.total_steps, STATED_STEPS.label("stated_steps")).where(
    jobs.c.id == bindparam("job_id"), jobs.c.epoch == bindparam("at_epoch")
)
_SET_TOTAL = (
    update(jobs)
    .where(jobs.c.id == bindparam("job_id"), jobs.c.epoch == bindparam("at_epoch"))
    .values(total_steps=bindparam("to_total"))
)
# Tokens decide who pays: whoever ends the run meanwhile is waited for, and found to have raised the epoch.
_RAISE_TOKENS = (
    update(run_jobs)
    .where(
        run_jobs.c.run_id == bindparam("of_run"),
        run_jobs.c.job_id == bindparam("of_job"),
        run_jobs.c.epoch == bindparam("at_epoch"),
        run_jobs.c.tokens < bindparam("to_tokens"),
        select(jobs.c.id)
        .where(jobs.c.id == bindparam("of_job"), jobs.c.epoch == bindparam("at_epoch"))
        .with_for_update(read=True)
        .cte("fenced")
        .select()
        .exists(),
    )
    .values(tokens=bindparam("to_tokens"))
)


@dataclass(frozen=True, slots=True)
class Done:
    """How far a job was, and how long code of its runs that are over ran."""

    steps: int
    ran_ms: int


async def done_by(connection: AsyncConnection, job_ids: tuple[str, ...]) -> dict[str, Done]:
    """Of each job, before its next run says where that begins."""
    rows = await connection.execute(select(jobs.c.id, jobs.c.step, jobs.c.ran_ms).where(is_one_of(jobs.c.id, job_ids)))
    return {row.id: Done(row.step, row.ran_ms) for row in rows}


async def enter_starting(connection: AsyncConnection, run_id: str, *, now_ms: int) -> bool:
    """The agent has taken the run up and prepares its files."""
    event = Event("run_starting", "the machine prepares code, environment and checkpoint")
    return await move_run(connection, run_id, RunState.STARTING, event, now_ms=now_ms, starting_ms=now_ms)


async def enter_running(
    connection: AsyncConnection,
    run_id: str,
    job_ids: tuple[str, ...],
    *,
    step: int,
    now_ms: int,
    purpose: RunPurpose = RunPurpose.TRAIN,
) -> int | None:
    """User code runs, from the step it resumed at (or `step`, when that is further), which is returned; None when the
    run's state does not allow it. A job's own time begins with training."""
    resumed = await connection.execute(select(runs.c.resumed_from_step).where(runs.c.id == run_id))
    first_step = max(step, resumed.scalar_one() or 0)
    trains = purpose is RunPurpose.TRAIN
    # The same of run and job: who shows one after the other says it once.
    told = f"user code runs, at step {first_step}" if trains else "its task is looked at, before it trains"
    since: Any = func.coalesce(jobs.c.first_running_ms, now_ms) if trains else jobs.c.first_running_ms
    moved = await move_run(
        connection,
        run_id,
        RunState.RUNNING,
        Event("run_running", told, {"step": first_step}),
        now_ms=now_ms,
        starting_ms=func.coalesce(runs.c.starting_ms, now_ms),
        running_ms=now_ms,
    )
    for job_id in job_ids if moved else ():
        await move_job(
            connection,
            job_id,
            JobState.RUNNING,
            Event(JobState.RUNNING, told, {"run_id": run_id, "step": first_step}),
            now_ms=now_ms,
            first_running_ms=since,
            step=first_step,
        )
    return first_step if moved else None


async def raise_step(connection: AsyncConnection, job_id: str, epoch: int, step: int) -> None:
    """Note progress under an epoch; it never goes back. Progress alone makes no planned action stale."""
    await connection.execute(_RAISE_STEP, {"job_id": job_id, "at_epoch": epoch, "to_step": step})


def stated_steps(text: str | None) -> int | None:
    """The number that the text is; None where a template states none that can be counted with."""
    is_number = text is not None and text.isascii() and text.isdigit() and len(text) <= _LARGEST_DIGITS
    return int(text) if is_number and text is not None else None


async def set_total_steps(connection: AsyncConnection, job_id: str, epoch: int, told: int | None) -> None:
    """Note, under an epoch, how many steps the job has, as its code tells: what is believed of it follows from its
    template and its step, which is to be raised before. As progress, it makes no planned action stale."""
    who = {"job_id": job_id, "at_epoch": epoch}
    row = (await connection.execute(_TOTALS, who)).one_or_none()
    if row is None:
        return
    total = believed_total(stated_steps(row.stated_steps), told or row.total_steps, row.step)
    if total != row.total_steps:
        await connection.execute(_SET_TOTAL, {**who, "to_total": total})


async def raise_tokens(connection: AsyncConnection, run_id: str, job_id: str, epoch: int, tokens: int) -> None:
    """Note how many tokens the run has processed for the job, under its epoch; they never get fewer."""
    who = {"of_run": run_id, "of_job": job_id, "at_epoch": epoch, "to_tokens": tokens}
    await connection.execute(_RAISE_TOKENS, who)
