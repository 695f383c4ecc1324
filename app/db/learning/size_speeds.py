"""How fast jobs of an app were at each number of GPUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import exists, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.elastic.size_table import SHAPING, KeptSpeed, SpeedKey, shape_of
from app.core.model.job import JobState
from app.core.model.node import GONE_NODE_STATES
from app.core.throughput import plain_gpu
from app.db.arrays import as_rows, is_none_of, is_one_of
from app.db.tables import allocations, jobs, metric_points, nodes, run_jobs, runs, size_speeds

_POINTS = 64
_STATED = (
    jobs.c.template["model"]["name"].astext.label("model"),
    *(jobs.c.template["training"][name].astext.label(name) for name in SHAPING),
)
# Of code that is restarted for its GPUs the batch follows their number: its steps per second are no speed (ADR 0129).
_KEEPS_BATCH = jobs.c.template["resize_by"].astext.is_distinct_from("restart")


@dataclass(frozen=True, slots=True)
class SpeedOfRun:
    """A run whose speed is asked for, and under what it is kept."""

    run_id: str
    job_id: str
    epoch: int
    key: SpeedKey


async def speeds_of_runs(connection: AsyncConnection, run_ids: Collection[str]) -> list[SpeedOfRun]:
    """Of live runs; one that holds nothing any more is left out, and one whose steps are larger with more GPUs."""
    rows = await connection.execute(
        select(
            *(runs.c.id, run_jobs.c.job_id, run_jobs.c.epoch, jobs.c.app_id, nodes.c.gpu_type),
            *_STATED,
        )
        .join(run_jobs, run_jobs.c.run_id == runs.c.id)
        .join(jobs, jobs.c.id == run_jobs.c.job_id)
        .join(allocations, (allocations.c.run_id == runs.c.id) & allocations.c.to_ms.is_(None))
        .join(nodes, nodes.c.id == allocations.c.node_id)
        .where(is_one_of(runs.c.id, run_ids), _KEEPS_BATCH)
        .order_by(runs.c.id)
    )
    return [SpeedOfRun(row.id, row.job_id, row.epoch, _key(row)) for row in rows]


def _key(row: Any) -> SpeedKey:
    return SpeedKey(row.app_id, _shape(row), plain_gpu(row.gpu_type))


def _shape(row: Any) -> str:
    return shape_of(row.model, {name: getattr(row, name) for name in SHAPING})


@dataclass(frozen=True, slots=True)
class StatedRun:
    """A run whose job states its training, with what its code told of itself."""

    run_id: str
    project_id: str
    template: Mapping[str, Any]
    facts: Mapping[str, Any]
    gpu_type: str


async def stated_runs(connection: AsyncConnection, run_ids: Collection[str]) -> list[StatedRun]:
    """Those of these live runs on one machine whose jobs state how they train, whatever their number of GPUs."""
    rows = await connection.execute(
        select(runs.c.id, runs.c.project_id, runs.c.facts, jobs.c.template, nodes.c.gpu_type)
        .join(run_jobs, run_jobs.c.run_id == runs.c.id)
        .join(jobs, jobs.c.id == run_jobs.c.job_id)
        .join(allocations, (allocations.c.run_id == runs.c.id) & allocations.c.to_ms.is_(None))
        .join(nodes, nodes.c.id == allocations.c.node_id)
        .where(
            *(is_one_of(runs.c.id, run_ids), _KEEPS_BATCH),
            jobs.c.template["training"]["method"].astext.is_not(None),
        )
        .order_by(runs.c.id)
    )
    return [
        StatedRun(row.id, row.project_id, row.template, row.facts if isinstance(row.facts, dict) else {}, row.gpu_type)
        for row in rows
        if isinstance(row.template, dict)
    ]


@dataclass(frozen=True, slots=True)
class WaitingRange:
    """A job that asks for a range, has never begun, and has no machine on its way. `template` is None where it states
    no training."""

    job_id: str
    project_id: str
    app_id: str
    shape: str
    template: Mapping[str, Any] | None

    def key(self, gpu_type: str) -> SpeedKey:
        """Under what its speeds are kept, on this kind of GPU."""
        return SpeedKey(self.app_id, self.shape, plain_gpu(gpu_type))


async def waiting_ranges(connection: AsyncConnection, job_ids: Collection[str]) -> list[WaitingRange]:
    """Those of these jobs whose speeds can be known, by id."""
    of, has_begun = jobs.c, exists().where(run_jobs.c.job_id == jobs.c.id)
    has_machine = exists().where(nodes.c.rented_for_job_id == of.id, is_none_of(nodes.c.state, GONE_NODE_STATES))
    states_method = of.template["training"]["method"].astext.is_not(None).label("states_method")
    rows = await connection.execute(
        select(of.id, of.project_id, of.app_id, of.template, states_method, *_STATED)
        .where(
            is_one_of(of.id, job_ids), of.state == JobState.QUEUED, of.elastic, ~has_begun, ~has_machine, _KEEPS_BATCH
        )
        .order_by(of.id)
    )
    return [
        WaitingRange(
            row.id,
            row.project_id,
            row.app_id,
            _shape(row),
            row.template if row.states_method and isinstance(row.template, dict) else None,
        )
        for row in rows
    ]


async def newest_points(connection: AsyncConnection, job_id: str, epoch: int, *, from_ms: int) -> list[tuple[int, int]]:
    """(step, when) of the newest points of a run, in their order, of those that were measured from then on."""
    of = metric_points.c
    rows = await connection.execute(
        select(of.step, of.at_ms).where(of.job_id == job_id, of.epoch == epoch).order_by(of.step.desc()).limit(_POINTS)
    )
    return [(row.step, row.at_ms) for row in reversed(rows.all()) if row.at_ms >= from_ms]


async def kept_speeds(connection: AsyncConnection, keys: Collection[SpeedKey]) -> dict[SpeedKey, dict[int, KeptSpeed]]:
    """By number of GPUs, of the keys of which any are kept."""
    of = size_speeds.c
    asked = sorted({(key.app_id, key.shape, key.gpu_type) for key in keys})
    given = as_rows("given", [of.app_id, of.shape, of.gpu_type], asked)
    rows = await connection.execute(
        select(size_speeds).join(
            given,
            (of.app_id == given.c.app_id) & (of.shape == given.c.shape) & (of.gpu_type == given.c.gpu_type),
        )
    )
    found: dict[SpeedKey, dict[int, KeptSpeed]] = {}
    for row in rows:
        of_key = found.setdefault(SpeedKey(row.app_id, row.shape, row.gpu_type), {})
        of_key[row.gpus] = KeptSpeed(row.steps_per_s, row.noise, row.samples)
    return found


async def speeds_of_job(connection: AsyncConnection, job_id: str) -> dict[tuple[str, int], KeptSpeed]:
    """What is kept of a job's app and shape, by kind and number of GPUs."""
    found = await connection.execute(select(jobs.c.app_id, *_STATED).where(jobs.c.id == job_id))
    row = found.one_or_none()
    if row is None:
        return {}
    of = size_speeds.c
    rows = await connection.execute(
        select(size_speeds).where(of.app_id == row.app_id, of.shape == _shape(row)).order_by(of.gpu_type, of.gpus)
    )
    return {(one.gpu_type, one.gpus): KeptSpeed(one.steps_per_s, one.noise, one.samples) for one in rows}


async def speed_with(connection: AsyncConnection, key: SpeedKey, gpus: int) -> KeptSpeed | None:
    of = size_speeds.c
    found = await connection.execute(
        select(of.steps_per_s, of.noise, of.samples).where(
            of.app_id == key.app_id, of.shape == key.shape, of.gpu_type == key.gpu_type, of.gpus == gpus
        )
    )
    row = found.one_or_none()
    return None if row is None else KeptSpeed(row.steps_per_s, row.noise, row.samples)


async def set_speed(connection: AsyncConnection, key: SpeedKey, gpus: int, kept: KeptSpeed, *, now_ms: int) -> None:
    """In the place of what was there."""
    values = {
        "steps_per_s": kept.steps_per_s,
        "noise": kept.noise,
        "samples": kept.samples,
        "updated_ms": now_ms,
    }
    fresh = insert(size_speeds).values(app_id=key.app_id, shape=key.shape, gpu_type=key.gpu_type, gpus=gpus, **values)
    index = ["app_id", "shape", "gpu_type", "gpus"]
    await connection.execute(fresh.on_conflict_do_update(index_elements=index, set_=values))
