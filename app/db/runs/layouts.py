"""What layouts of runs are made of, and where they are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, exists, func, lateral, or_, select, true, update
from sqlalchemy.ext.asyncio import AsyncConnection

from allpass.recipe.packing import SCRIPT_NAME
from app.core.layout import StepCut
from app.core.memory.training import Precision
from app.core.model.checkpoint import CheckpointState
from app.core.model.run import RunPurpose, RunState
from app.core.precision import told_precision
from app.db.arrays import is_one_of
from app.db.tables import app_versions, checkpoints, jobs, run_jobs, runs


@dataclass(frozen=True, slots=True)
class ToLayOut:
    """A job that states a training. `by_recipe`: the built-in one trains it; then `begun` is how it has cut its steps
    so far, and `precision` what it has computed them in, by the run whose checkpoint it goes on with, or that trains
    it now."""

    template: Mapping[str, Any]
    project_id: str
    by_recipe: bool
    begun: StepCut | None
    precision: Precision | None = None


async def cut_of(connection: AsyncConnection, job_id: str) -> StepCut | None:
    """How a job has cut its steps so far; None before it has begun, and of code that does not say it."""
    told = _last_told().where(run_jobs.c.job_id == job_id)
    row = (await connection.execute(told)).one_or_none()
    return None if row is None else _cut(row.facts) or _cut(row.layout)


async def jobs_to_lay_out(connection: AsyncConnection, job_ids: Sequence[str]) -> dict[str, ToLayOut]:
    """By job, of those that state a training."""
    last = lateral(_last_told().where(run_jobs.c.job_id == jobs.c.id)).alias("last")
    is_recipe = func.coalesce(app_versions.c.entrypoint == SCRIPT_NAME, False).label("by_recipe")
    rows = await connection.execute(
        select(jobs.c.id, jobs.c.project_id, jobs.c.template, is_recipe, last.c.layout, last.c.facts)
        .join(app_versions, app_versions.c.id == jobs.c.app_version_id)
        .outerjoin(last, true())
        .where(is_one_of(jobs.c.id, job_ids), jobs.c.plan.is_not(None))
    )
    return {
        row.id: ToLayOut(
            row.template,
            row.project_id,
            row.by_recipe,
            _cut(row.facts) or _cut(row.layout) if row.by_recipe else None,
            told_precision(row.layout) if row.by_recipe else None,
        )
        for row in rows
    }


def _last_told() -> Select[Any]:
    """Of the run that trains, or whose checkpoint is gone on with."""
    point = checkpoints.c
    saved = exists().where(
        point.job_id == run_jobs.c.job_id, point.run_id == runs.c.id, point.state == CheckpointState.COMMITTED
    )
    return (
        select(runs.c.layout, runs.c.facts)
        .join(run_jobs, run_jobs.c.run_id == runs.c.id)
        .where(runs.c.purpose == RunPurpose.TRAIN, or_(runs.c.state == RunState.RUNNING, saved))
        .order_by(run_jobs.c.epoch.desc())
        .limit(1)
    )


def _cut(told: Any) -> StepCut | None:
    """What a run told of itself comes first: where memory ran out, it has cut its steps smaller than it was to."""
    found = told if isinstance(told, dict) else {}
    micro = found.get("micro_batch")
    if not isinstance(micro, int) or micro < 1:
        return None
    return StepCut(micro, found.get("checkpointing") is True)


async def set_layout(connection: AsyncConnection, job_id: str, layout: Mapping[str, Any]) -> None:
    """With the job's newest run, for its agent to hand on, and with the run that shares its process."""
    newest = (
        select(run_jobs.c.run_id).where(run_jobs.c.job_id == job_id).order_by(run_jobs.c.epoch.desc()).limit(1)
    ).scalar_subquery()
    await connection.execute(
        update(runs).where(or_(runs.c.id == newest, runs.c.companion_of == newest)).values(layout=dict(layout))
    )
