"""How fast elastic runs are at the number of GPUs that they have, measured, kept for their app, and put together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from allpass.wire.template import Template
from app.core.elastic.profile import MeasuredSpeed, batches_of, measured_speed
from app.core.elastic.size_table import KeptSpeed, kept_after
from app.core.precision import on_gpu
from app.core.resizing import MOST_GPUS
from app.core.throughput import Throughput
from app.db.connection import Connection
from app.db.learning.calibrations import steps_by_project
from app.db.learning.size_speeds import (
    SpeedOfRun,
    StatedRun,
    kept_speeds,
    newest_points,
    set_speed,
    speed_with,
    speeds_of_runs,
    stated_runs,
)
from app.errors import InvalidInput
from app.services.jobs.state_training import stated_training
from app.services.learning.learn_from_runs import at_size, layout_told


@dataclass(frozen=True, slots=True)
class AskedSpeed:
    """Whether a run has shown how fast it is since then, with so many GPUs."""

    run_id: str
    gpus: int
    from_ms: int


@dataclass(frozen=True, slots=True)
class FoundSpeed:
    of: SpeedOfRun
    gpus: int
    speed: MeasuredSpeed


@dataclass(frozen=True, slots=True)
class KnownSpeeds:
    """By run: what was kept of its app, by number of GPUs; and what was found just now."""

    kept: Mapping[str, Mapping[int, KeptSpeed]]
    found: tuple[FoundSpeed, ...]


async def look_at_speeds(connection: Connection, run_ids: Collection[str], asked: Sequence[AskedSpeed]) -> KnownSpeeds:
    """Writes nothing."""
    of_runs = {one.run_id: one for one in await speeds_of_runs(connection, run_ids)}
    tables = await kept_speeds(connection, {one.key for one in of_runs.values()}) if of_runs else {}
    found = []
    for one in asked:
        of = of_runs.get(one.run_id)
        if of is not None:
            points = await newest_points(connection, of.job_id, of.epoch, from_ms=one.from_ms)
            speed = measured_speed(batches_of(points))
            found += [] if speed is None else [FoundSpeed(of, one.gpus, speed)]
    kept = {run_id: tables[of.key] for run_id, of in of_runs.items() if of.key in tables}
    return KnownSpeeds(kept, tuple(found))


async def keep_speed(connection: Connection, found: FoundSpeed, *, now_ms: int) -> KeptSpeed:
    """For the jobs of its app that come after it."""
    before = await speed_with(connection, found.of.key, found.gpus)
    after = kept_after(before, found.speed)
    await set_speed(connection, found.of.key, found.gpus, after, now_ms=now_ms)
    return after


async def read_stated(
    connection: Connection, run_ids: Collection[str]
) -> tuple[list[StatedRun], dict[str, Throughput]]:
    """What is needed to predict these runs, with what their projects have measured of steps."""
    stated = await stated_runs(connection, run_ids)
    steps = await steps_by_project(connection, sorted({one.project_id for one in stated})) if stated else {}
    return stated, {project_id: Throughput.of(rows) for project_id, rows in steps.items()}


def predicted_speeds(run: StatedRun, throughput: Throughput) -> dict[int, float]:
    """Steps per second by number of GPUs, as layouts are chosen by (`app.core.throughput`); empty where its training is
    not known. The first of a model takes up to a second: call it in a thread."""
    try:
        template = Template.model_validate(run.template)
        stated = stated_training(template)
        if stated is None or template.nodes > 1:
            return {}
        training = on_gpu(stated.training, run.gpu_type, None)
        one = layout_told(training, run.facts, template.gpu.count, stated.micro_batch, stated.checkpointing)
    except (InvalidInput, ValidationError):
        return {}
    if one is None:
        return {}  # of one that has not begun: its template leaves the micro-batch open
    found: dict[int, Any] = {
        gpus: throughput.step(stated.model, at_size(one, gpus, stated.batch), run.gpu_type, name=stated.name)
        for gpus in range(1, MOST_GPUS + 1)
    }
    return {gpus: 1000 / step.ms for gpus, step in found.items() if step is not None and step.ms > 0}
