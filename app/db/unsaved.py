"""Jobs whose checkpoints cannot be kept, and how much of a job's work is in no checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import checkpoints, jobs


@dataclass(frozen=True, slots=True)
class AtRisk:
    """A job at `step` that would go on from `kept_step`. `why`: why its checkpoints are not kept; None: they are, as
    far as anybody knows."""

    step: int
    kept_step: int
    has_checkpoint: bool
    why: str | None

    @property
    def steps(self) -> int:
        """That nobody could go on from."""
        return max(0, self.step - self.kept_step)

    def since(self) -> str:
        """From where on they count, in words."""
        return f"the checkpoint of step {self.kept_step}" if self.has_checkpoint else "it began"


async def at_risk(connection: AsyncConnection, job_id: str) -> AtRisk:
    """What the job would lose if its run ended now. The caller holds the job's lock."""
    first = select(checkpoints.c.step).where(checkpoints.c.id == jobs.c.from_checkpoint_id).scalar_subquery()
    statement = select(
        jobs.c.step,
        func.coalesce(jobs.c.checkpoint_step, first, 0).label("kept_step"),
        jobs.c.checkpoint_step,
        jobs.c.refused_why,
    ).where(jobs.c.id == job_id)
    row = (await connection.execute(statement)).one()
    return AtRisk(row.step, row.kept_step, row.checkpoint_step is not None, row.refused_why)


async def note_saves(connection: AsyncConnection, job_id: str, epoch: int, *, now_ms: int) -> None:
    """The code of the job's run says that it saves when it is asked to: from now on plans may move the job. The epoch
    is the fence: a run that ended meanwhile has lost it."""
    await connection.execute(
        update(jobs)
        .where(jobs.c.id == job_id, jobs.c.epoch == epoch, jobs.c.saves_ms.is_(None))
        .values(saves_ms=now_ms)
    )


async def note_refused(connection: AsyncConnection, job_id: str, why: str, *, now_ms: int) -> bool:
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
