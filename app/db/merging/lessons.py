"""Merges that have ended, beside jobs that trained alone: what there is to learn of gains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, and_, exists, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from allpass.errors import InvalidInput
from allpass.recipe.packing import SCRIPT_NAME
from allpass.recipe.settings import Recipe
from app.core.model.job import TERMINAL_JOB_STATES, JobState
from app.core.model.merge import MergeMode, MergeState
from app.db.tables import app_versions, jobs, merges

_MOST_ALIKE = 20


@dataclass(frozen=True, slots=True)
class EndedMerge:
    """`job_ids`: of the jobs whose steps tell what it was worth. Empty: it tells nothing."""

    merge_id: str
    job_ids: tuple[str, ...]


async def merges_to_learn(connection: AsyncConnection, limit: int) -> tuple[EndedMerge, ...]:
    """Merges that are over, as are the jobs that tell what they were worth; by id."""
    lead, companion = jobs.alias("lead"), jobs.alias("companion")
    told = and_(
        companion.c.state.in_(TERMINAL_JOB_STATES),
        or_(merges.c.mode == MergeMode.IN_TURN, lead.c.state.in_(TERMINAL_JOB_STATES)),
    )
    rows = await connection.execute(
        select(merges, lead.c.state.label("lead_state"), companion.c.state.label("companion_state"))
        .join(lead, lead.c.id == merges.c.lead_job_id)
        .join(companion, companion.c.id == merges.c.companion_job_id)
        .where(~merges.c.learned, merges.c.state != MergeState.OPEN, or_(merges.c.state != MergeState.ENDED, told))
        .order_by(merges.c.id)
        .limit(limit)
    )
    return tuple(EndedMerge(row.id, _who_tells(row)) for row in rows)


def _who_tells(row: Row[Any]) -> tuple[str, ...]:
    if row.state != MergeState.ENDED or row.companion_state != JobState.SUCCEEDED:
        return ()
    if row.mode == MergeMode.IN_TURN:
        return (row.companion_job_id,)
    return (row.lead_job_id, row.companion_job_id) if row.lead_state == JobState.SUCCEEDED else ()


async def steps_of(connection: AsyncConnection, job_id: str) -> tuple[int, float | None]:
    """The steps of a job, and the mean of those that the newest jobs like it have taken alone.

    Alike are jobs of its project with the same rows and parameters but the seed. None: there are none, or the job has
    no target, so that it takes its steps however much it has learned.
    """
    mine = (await connection.execute(_recipe_jobs().where(jobs.c.id == job_id))).one_or_none()
    if mine is None or not _has_target(mine.parameters):
        return 0 if mine is None else mine.step, None
    merged = exists().where(
        or_(
            and_(merges.c.mode == MergeMode.TOGETHER, jobs.c.id.in_((merges.c.lead_job_id, merges.c.companion_job_id))),
            and_(merges.c.companion_job_id == jobs.c.id, merges.c.state == MergeState.ENDED),
        )
    )
    others = (
        _recipe_jobs()
        .where(
            jobs.c.project_id == mine.project_id,
            jobs.c.id != job_id,
            jobs.c.state == JobState.SUCCEEDED,
            jobs.c.step > 0,
            jobs.c.from_checkpoint_id.is_(None),
            app_versions.c.bundle_sha256 == mine.bundle_sha256,
            ~merged,
        )
        .order_by(jobs.c.ended_ms.desc(), jobs.c.id)
        .limit(_MOST_ALIKE)
    )
    rows = await connection.execute(others)
    steps = [row.step for row in rows if _but_seed(row.parameters) == _but_seed(mine.parameters)]
    return mine.step, sum(steps) / len(steps) if steps else None


async def set_lesson(connection: AsyncConnection, merge_id: str, gain: float | None) -> None:
    """What the merge was worth, where that is known; it is not asked again."""
    values: dict[str, Any] = {"learned": True} if gain is None else {"learned": True, "seen_gain": gain}
    await connection.execute(update(merges).where(merges.c.id == merge_id).values(**values))


def _recipe_jobs() -> Any:
    return (
        select(jobs.c.project_id, jobs.c.step, jobs.c.parameters, app_versions.c.bundle_sha256)
        .join(app_versions, app_versions.c.id == jobs.c.app_version_id)
        .where(app_versions.c.entrypoint == SCRIPT_NAME)
    )


def _has_target(parameters: Any) -> bool:
    try:
        return bool(Recipe.of(parameters).target)
    except (InvalidInput, TypeError, ValueError):
        return False


def _but_seed(parameters: Any) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if name != "seed"} if isinstance(parameters, dict) else {}
