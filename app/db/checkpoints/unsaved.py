"""Jobs whose checkpoints cannot be kept, and how much of a job's work is in no checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.run import RunPurpose, RunState
from app.core.policies.reasons import duration
from app.core.saving import DOES_NOT_SAY
from app.db.arrays import is_one_of
from app.db.tables import checkpoints, jobs, run_jobs, runs

_WORTH_A_WORD_MS = 10_000  # of code that reports no steps: what is shorter is hardly a training


@dataclass(frozen=True, slots=True)
class AtRisk:
    """A job at `step` that would go on from `kept_step`. `why`: why its checkpoints are not kept; None: they are, as
    far as anybody knows. `saves`: its code says that it does when it is asked to. `ran_ms`: how long its present run
    has trained."""

    step: int
    kept_step: int
    has_checkpoint: bool
    why: str | None
    saves: bool
    ran_ms: int

    @property
    def steps(self) -> int:
        """That nobody could go on from."""
        return max(0, self.step - self.kept_step)

    @property
    def would_leave_without(self) -> str | None:
        """Why its run, asked to save and leave, would leave without; None: it would save, as far as anybody knows."""
        if self.why is not None:
            return f"its checkpoints are not kept ({self.why})"
        return None if self.saves else DOES_NOT_SAY

    @property
    def lost(self) -> str | None:
        """What would be lost with the present run, in words; None: nothing. Code that reports no steps and has never
        saved loses its time."""
        if self.steps:
            return "1 step" if self.steps == 1 else f"{self.steps:,} steps"
        if self.saves or self.has_checkpoint or self.step or self.ran_ms < _WORTH_A_WORD_MS:
            return None
        return f"{duration(self.ran_ms)} of running"

    @property
    def loss(self) -> str | None:
        """What a run that is asked to save and leave now loses, and why, in words; None: nothing, as far as anybody
        knows."""
        why, lost = self.would_leave_without, self.lost
        return None if why is None or lost is None else f"{why}: {lost} since {self.since()} will be lost"

    def since(self) -> str:
        """From where on they count, in words."""
        return f"the checkpoint of step {self.kept_step}" if self.has_checkpoint else "it began"


async def at_risk(connection: AsyncConnection, job_id: str, *, now_ms: int) -> AtRisk:
    """What the job would lose if its run ended now. The caller holds the job's lock."""
    begun = (
        select(runs.c.running_ms)
        .join(run_jobs, run_jobs.c.run_id == runs.c.id)
        .where(
            run_jobs.c.job_id == jobs.c.id,
            run_jobs.c.epoch == jobs.c.epoch,
            runs.c.state != RunState.ENDED,
            runs.c.purpose == RunPurpose.TRAIN,
        )
        .scalar_subquery()
    )
    first = select(checkpoints.c.step).where(checkpoints.c.id == jobs.c.from_checkpoint_id).scalar_subquery()
    statement = select(
        jobs.c.step,
        func.coalesce(jobs.c.checkpoint_step, first, 0).label("kept_step"),
        jobs.c.checkpoint_step,
        jobs.c.refused_why,
        jobs.c.saves_ms,
        begun.label("begun_ms"),
    ).where(jobs.c.id == job_id)
    row = (await connection.execute(statement)).one()
    return AtRisk(
        row.step,
        row.kept_step,
        row.checkpoint_step is not None,
        row.refused_why,
        row.saves_ms is not None,
        0 if row.begun_ms is None else max(0, now_ms - row.begun_ms),
    )


async def have_never_saved(connection: AsyncConnection, job_ids: Sequence[str]) -> bool:
    """Whether all of these jobs would begin again at step 0, as far as anybody knows."""
    keeps = jobs.c.saves_ms.is_not(None) | jobs.c.checkpoint_step.is_not(None)
    statement = select(exists().where(is_one_of(jobs.c.id, job_ids), keeps))
    return not (await connection.execute(statement)).scalar_one()


async def set_saves(connection: AsyncConnection, job_id: str, epoch: int, *, now_ms: int) -> None:
    """The code of the job's run says that it saves when it is asked to: from now on plans may move the job. The epoch
    is the fence: a run that ended meanwhile has lost it."""
    await connection.execute(
        update(jobs)
        .where(jobs.c.id == job_id, jobs.c.epoch == epoch, jobs.c.saves_ms.is_(None))
        .values(saves_ms=now_ms, row_version=jobs.c.row_version + 1)  # what it allows is decided soon
    )


async def set_refused(connection: AsyncConnection, job_id: str, why: str, *, now_ms: int) -> bool:
    """From now on no plan takes the job off its machine; whether that is news. The next checkpoint that is committed
    ends it. The caller holds the job's lock."""
    first = jobs.c.refused_ms.is_(None)
    known = (await connection.execute(select(first).where(jobs.c.id == job_id))).scalar_one()
    await connection.execute(
        update(jobs)
        .where(jobs.c.id == job_id)
        .values(
            refused_ms=func.coalesce(jobs.c.refused_ms, now_ms),
            refused_why=why,
            row_version=jobs.c.row_version + (1 if known else 0),  # what was planned before is decided anew
        )
    )
    return bool(known)
