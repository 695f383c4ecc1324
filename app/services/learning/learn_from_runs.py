"""Ended runs teach: how long a step took, and how far the predicted memory was off."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from pydantic import ValidationError

from allpass.wire.template import Template
from app.core.memory import Estimate, Training, estimate
from app.core.memory.architecture import Architecture
from app.core.memory.calibration import Observed, TrainingKind, kind_of, learned
from app.core.memory.need import Stated
from app.core.memory.training import Sharding
from app.core.precision import on_gpu, told_precision
from app.core.progress import ProgressRate
from app.core.roofline import gpu_named, step_ms
from app.core.throughput import StepKey, key_of, updated
from app.db.connection import Connection
from app.db.learning import calibrations as learning
from app.db.learning.calibrations import EndedRun
from app.errors import InvalidInput
from app.ports.clock import IdSource
from app.services.jobs.state_training import stated_training

OUT_OF_MEMORY = "out_of_memory"


@dataclass(frozen=True, slots=True)
class StepLesson:
    """A measured step of one layout."""

    key: StepKey
    measured_ms: float
    roofline_ms: float | None


@dataclass(frozen=True, slots=True)
class MemoryLesson:
    """Measured peaks beside what was predicted for the same run."""

    kind: TrainingKind
    predicted: Estimate
    observed: Observed


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one run teaches; neither where it said too little."""

    run_id: str
    project_id: str
    step: StepLesson | None = None
    earlier: tuple[StepLesson, ...] = ()  # with other numbers of GPUs
    memory: MemoryLesson | None = None


def study(told: Iterable[EndedRun]) -> tuple[Lesson, ...]:
    """Predicts each run as it was laid out. The first run of a model takes up to a second: call it in a thread."""
    return tuple(_lesson(one) for one in told)


async def take_lessons(connection: Connection, ids: IdSource, lessons: Iterable[Lesson], *, now_ms: int) -> None:
    """Write what was learned, and that it was: a run counts once."""
    done = []
    for lesson in lessons:
        done.append(lesson.run_id)
        for step in (*lesson.earlier, *filter(None, [lesson.step])):
            before = await learning.step_row(connection, lesson.project_id, step.key)
            row = updated(before, step.measured_ms, step.roofline_ms)
            await learning.set_step_time(connection, lesson.project_id, step.key, row, now_ms=now_ms)
        if lesson.memory is not None:
            kind = lesson.memory.kind
            known = await learning.calibration_of(connection, lesson.project_id, kind)
            after = learned(known, lesson.memory.predicted, lesson.memory.observed)
            if after is not None:
                new_id = ids.new("cal")
                await learning.set_calibration(connection, new_id, lesson.project_id, kind, after, now_ms=now_ms)
    await learning.mark_learned(connection, done)


def _lesson(told: EndedRun) -> Lesson:
    nothing = Lesson(told.run_id, told.project_id)
    try:
        template = Template.model_validate(told.template)
        stated = stated_training(template)
        if stated is None:
            return nothing
        training = on_gpu(stated.training.over(told.machines), told.gpu_type, told_precision(told.layout))
        told = replace(told, gpus=told.gpus * told.machines)
        layout = layout_told(training, told.facts, told.gpus, stated.micro_batch, stated.checkpointing)
        if layout is None:
            return nothing
        if told.earlier:  # what its code told of a step may be of another number of GPUs
            layout = at_size(layout, told.gpus, stated.batch)
        predicted = estimate(stated.model, layout)
    except (InvalidInput, ValidationError):  # it ran nevertheless: what it was is not what it said
        return nothing
    return replace(
        nothing,
        # between machines there is a network, of whose speed nothing is kept
        step=None if told.machines > 1 else _step(stated.name, stated.model, layout, told, told.pace),
        earlier=() if told.machines > 1 else tuple(_earlier(stated, layout, told)),
        memory=_memory(stated.model, layout, predicted, told),
    )


def layout_told(
    training: Training, facts: Mapping[str, Any], gpus: int, micro_batch: int | None, checkpointing: bool | None
) -> Training | None:
    """As the code says that it ran, else as the template states it; None where neither tells the micro-batch."""
    micro = facts.get("micro_batch") or micro_batch
    if micro is None:
        return None
    recomputes = facts.get("checkpointing")
    known: dict[str, Sharding] = {name: name for name in get_args(Sharding)}
    spread = known.get(str(facts.get("sharding")), "ddp")
    return replace(
        training,
        batch=micro,
        sequence=facts.get("sequence") or training.sequence,
        accumulation=facts.get("accumulation") or 1,
        gpus=gpus,
        sharding="none" if gpus == 1 else spread,
        checkpointing=bool(checkpointing if recomputes is None else recomputes),
    )


def at_size(layout: Training, gpus: int, batch: int) -> Training:
    """The same step of `batch` sequences on another number of GPUs of a machine: it is cut into micro-batches, which
    are shared out, so that some GPUs may have one less (ADR 0098)."""
    parts = math.ceil(batch / layout.batch)
    spread: Sharding = "ddp" if layout.sharding == "none" else layout.sharding
    return replace(layout, gpus=gpus, accumulation=math.ceil(parts / gpus), sharding="none" if gpus == 1 else spread)


def _earlier(stated: Stated, layout: Training, told: EndedRun) -> Iterator[StepLesson]:
    for gpus, pace in told.earlier:
        lesson = _step(stated.name, stated.model, at_size(layout, gpus, stated.batch), told, pace)
        if lesson is not None:
            yield lesson


def _step(
    name: str, model: Architecture, layout: Training, told: EndedRun, pace: ProgressRate | None
) -> StepLesson | None:
    measured_ms = None if pace is None else pace.step_ms()
    if measured_ms is None:
        return None
    gpu = gpu_named(told.gpu_type)
    roofline_ms = None if gpu is None else step_ms(model, layout, gpu)
    return StepLesson(key_of(name, layout, told.gpu_type, model.layers), measured_ms, roofline_ms)


def _memory(model: Architecture, layout: Training, predicted: Estimate, told: EndedRun) -> MemoryLesson | None:
    facts: Mapping[str, Any] = told.facts
    full = told.gpu_memory_bytes if facts.get(OUT_OF_MEMORY) else None
    observed = Observed(facts.get("allocated_bytes"), facts.get("reserved_bytes"), facts.get("process_bytes"), full)
    if observed.allocated is None and full is None:
        return None
    return MemoryLesson(kind_of(model, layout, told.gpu_type, facts.get("versions") or {}), predicted, observed)
