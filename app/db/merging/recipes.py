"""What decides whom a job of the built-in recipe may be trained with, and what is known of its course."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from sqlalchemy import Row, and_, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from allpass.errors import InvalidInput
from allpass.recipe.packing import SCRIPT_NAME
from allpass.recipe.settings import SHARED_BY_A_PAIR
from allpass.recipe.settings import Recipe as Settings
from app.core.model.merge import Recipe
from app.db import notify
from app.db.arrays import as_rows, is_one_of
from app.db.tables import app_versions, jobs, metric_points, profiles

_MOST_POINTS = 64
_MOST_ROWS = 2**31 - 1  # what the column holds
_LOSS = "eval_loss"
RECIPE_COLUMNS = (app_versions.c.entrypoint, app_versions.c.bundle_sha256, app_versions.c.environment_sha256)


def recipe_of(row: Row[Any]) -> Recipe | None:
    """Of a row with the job's `parameters`, `template`, `sharing`, `profile_tries` and `from_checkpoint_id` and its
    version's `entrypoint`, `bundle_sha256` and `environment_sha256`, without what its course has shown. None: it runs
    code of its own, begins with a checkpoint that was chosen, or learns from pairs."""
    if row.entrypoint != SCRIPT_NAME or not isinstance(row.parameters, dict) or row.from_checkpoint_id is not None:
        return None
    # One process has the packages, the secrets and the variables of one of its two jobs.
    variables = (f"{name}={value}" for name, value in (row.template.get("env") or {}).items())
    around = (row.environment_sha256, *sorted(row.template.get("secrets") or ()), *sorted(variables))
    found = _recipe(row.bundle_sha256, json.dumps(row.parameters, sort_keys=True), around)
    return None if found is None else replace(found, shares=row.sharing, profile_tries=row.profile_tries)


@lru_cache(maxsize=4096)  # asked again with every decision
def _recipe(bundle_sha256: str, parameters: str, around: tuple[str, ...]) -> Recipe | None:
    try:
        settings = Settings.of(json.loads(parameters))
    except (InvalidInput, TypeError, ValueError):
        return None
    if settings.learns_pairs:
        return None  # its reference is its own, and its loss is not of a kind with others'
    target = settings.target or {}
    four_bits = settings.method == "qlora"
    task = [settings.model, settings.task, settings.sequence_length, settings.numbers, four_bits]
    return Recipe(
        base=_base(settings),
        tokenizer=settings.model,
        sequence=settings.sequence_length,
        precision=settings.numbers,
        target_loss=target.get(_LOSS),
        ends_early=bool(target) or settings.patience is not None,
        settings=_digest([*(_plain(getattr(settings, name)) for name in SHARED_BY_A_PAIR), *around]),
        profile_key=_digest([bundle_sha256, *task]),
    )


def _base(settings: Settings) -> str:
    """The weights that are trained, in words: of one job's shape, another one can go on from them."""
    words = f"{settings.model} ({settings.task}, {settings.method}"
    if settings.method == "full":
        return f"{words})"
    targets = settings.lora_targets if isinstance(settings.lora_targets, str) else " ".join(settings.lora_targets)
    return f"{words} of rank {settings.lora_rank}, alpha {settings.lora_alpha or 2 * settings.lora_rank}, {targets})"


def _plain(value: Any) -> Any:
    """Equal settings as equal JSON: 0 and 0.0 are the same."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return list(value) if isinstance(value, tuple) else value


def _digest(parts: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


async def task_of(connection: AsyncConnection, job_id: str, *, epoch: int | None = None) -> tuple[str, str] | None:
    """The project and key under which the task of this job is profiled; None for a job of no recipe, and where `epoch`
    is over."""
    statement = select(jobs, *RECIPE_COLUMNS).join(app_versions, app_versions.c.id == jobs.c.app_version_id)
    row = (await connection.execute(statement.where(jobs.c.id == job_id))).one_or_none()
    if row is None or epoch not in (None, row.epoch):
        return None
    recipe = recipe_of(row)
    return None if recipe is None else (row.project_id, recipe.profile_key)


async def was_interrupted(connection: AsyncConnection, job_id: str) -> bool:
    """Whether a run of this job ended by a fault, or for want of memory: its task may be to blame."""
    found = select(jobs.c.faults + jobs.c.memory_retries > 0).where(jobs.c.id == job_id)
    return bool((await connection.execute(found)).scalar_one_or_none())


async def set_profile(
    connection: AsyncConnection,
    task: tuple[str, str],
    *,
    fisher: Sequence[float],
    pull: Sequence[float],
    rows: int,
    tokens: int,
    now_ms: int,
) -> None:
    """What was found of a task (`task_of`), in the place of what was there."""
    project_id, key = task
    values = {
        "fisher": list(fisher),
        "pull": list(pull),
        "rows": min(rows, _MOST_ROWS),
        "tokens": tokens,
        "made_ms": now_ms,
    }
    fresh = insert(profiles).values(project_id=project_id, key=key, **values)
    await connection.execute(fresh.on_conflict_do_update(index_elements=["project_id", "key"], set_=values))
    await notify.control(connection)


async def recipes_of(
    connection: AsyncConnection, rows: Sequence[Row[Any]], training: Collection[str]
) -> dict[str, Recipe]:
    """By job, of rows as `recipe_of` takes them: with profiles, and with the losses of those that are `training`.
    Without the time of a step, which the prediction knows."""
    found = {row.id: (row.project_id, recipe) for row in rows if (recipe := recipe_of(row)) is not None}
    if not found:
        return {}
    known = await _profiles(connection, {(project_id, recipe.profile_key) for project_id, recipe in found.values()})
    losses = await _losses(connection, [job_id for job_id in found if job_id in training])
    recipes = {}
    for job_id, (project_id, recipe) in found.items():
        fisher, pull = known.get((project_id, recipe.profile_key), ((), ()))
        recipes[job_id] = replace(recipe, fisher=fisher, pull=pull, losses=losses.get(job_id, ()))
    return recipes


async def _profiles(
    connection: AsyncConnection, keys: Collection[tuple[str, str]]
) -> Mapping[tuple[str, str], tuple[tuple[float, ...], tuple[float, ...]]]:
    of = profiles.c
    wanted = as_rows("wanted", (of.project_id, of.key), sorted(keys))
    same = and_(of.project_id == wanted.c.project_id, of.key == wanted.c.key)
    rows = await connection.execute(select(profiles).join(wanted, same))
    return {(row.project_id, row.key): (tuple(row.fisher), tuple(row.pull)) for row in rows}


async def _losses(connection: AsyncConnection, job_ids: Sequence[str]) -> dict[str, tuple[tuple[int, float], ...]]:
    """At most so many held-out losses of each job, by step: evenly thinned, the last one among them."""
    if not job_ids:
        return {}
    point = metric_points.c
    back = func.row_number().over(partition_by=point.job_id, order_by=point.step.desc()) - 1
    counted = (
        select(
            point.job_id,
            point.step,
            point["values"][_LOSS].astext.label("loss"),
            back.label("back"),
            func.count().over(partition_by=point.job_id).label("count"),
        )
        .where(is_one_of(point.job_id, job_ids), func.jsonb_typeof(point["values"][_LOSS]) == "number")
        .subquery()
        .c
    )
    every = (counted["count"] + _MOST_POINTS - 1) // _MOST_POINTS
    rows = await connection.execute(
        select(counted.job_id, counted.step, counted.loss)
        .where(counted.back % every == 0)
        .order_by(counted.job_id, counted.step)
    )
    losses: dict[str, list[tuple[int, float]]] = {}
    for job_id, step, loss in rows:
        losses.setdefault(job_id, []).append((step, float(loss)))
    return {job_id: tuple(points) for job_id, points in losses.items()}
