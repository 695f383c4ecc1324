"""Seconds per step, measured where there is history, and the roofline's estimate where there is none. Pure.

A measured step is kept under all that decides its length. Where exactly this was never measured, the roofline is
scaled by how far it was off for the nearest that was: the same model on the same GPU first, then the same GPU, then
anything. Few measurements move it little.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.core.memory.architecture import Architecture
from app.core.memory.training import Training
from app.core.roofline import gpu_named, step_ms

NEWEST_WEIGHT = 0.3  # of the newest measurement in the mean: newer libraries are believed after a few
PRIOR_SAMPLES = 2.0  # how many measurements the roofline counts as
Source = Literal["measured", "scaled", "estimate"]


@dataclass(frozen=True, slots=True, order=True)
class StepKey:
    """All that decides how long a step takes. `gpu_type` as `plain_gpu` writes it."""

    model: str
    gpu_type: str
    gpus: int
    micro_batch: int
    accumulation: int
    sequence: int
    method: str
    frozen_layers: int
    precision: str
    checkpointing: bool
    parallelism: str


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """The mean step of one key, newer measurements counting more; `roofline_ms`: what was estimated, if anything."""

    step_ms: float
    samples: int
    roofline_ms: float | None


@dataclass(frozen=True, slots=True)
class StepTime:
    """`source`: `measured` for exactly this, `scaled` from measurements of something near, or a bare `estimate`."""

    ms: float
    source: Source


@dataclass(slots=True)
class Throughput:
    """The table. Used for many questions, changed by `learn` only."""

    _rows: dict[StepKey, MeasuredStep] = field(default_factory=dict)
    _ratios: dict[tuple[str, ...], tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Mapping[StepKey, MeasuredStep] | Iterable[tuple[StepKey, MeasuredStep]]) -> Throughput:
        """From what was kept."""
        table = cls(dict(rows))
        for key, measured in table._rows.items():
            table._count(key, measured, 1)
        return table

    def learn(self, key: StepKey, measured_ms: float, roofline_ms: float | None) -> MeasuredStep:
        """One more measurement; returns the row to keep."""
        before = self._rows.get(key)
        after = updated(before, measured_ms, roofline_ms)
        if before is not None:
            self._count(key, before, -1)
        self._rows[key] = after
        self._count(key, after, 1)
        return after

    def step(self, model: Architecture, training: Training, gpu_type: str, *, name: str) -> StepTime | None:
        """How long a step takes; None for a type of GPU that nobody has figures of and that was never measured."""
        row = self._rows.get(key_of(name, training, gpu_type, model.layers)) if self._rows else None
        if row is not None:
            return StepTime(row.step_ms, "measured")
        gpu = gpu_named(gpu_type)
        if gpu is None:
            return None
        estimated = step_ms(model, training, gpu)
        if not self._ratios:
            return StepTime(estimated, "estimate")
        return self._scaled(estimated, name, training, plain_gpu(gpu_type))

    def _scaled(self, estimated: float, name: str, training: Training, gpu: str) -> StepTime:
        """From the widest group to the nearest, each shrinking toward the one before."""
        log_ratio, known = 0.0, False
        method = _method(training)
        for group in ((), (method,), (gpu,), (gpu, method), (gpu, method, name)):
            total, samples = self._ratios.get(group, (0.0, 0.0))
            if samples > 0.5:
                known = True
                log_ratio = (PRIOR_SAMPLES * log_ratio + total) / (PRIOR_SAMPLES + samples)
        return StepTime(estimated * math.exp(log_ratio), "scaled" if known else "estimate")

    def _count(self, key: StepKey, row: MeasuredStep, sign: int) -> None:
        if row.roofline_ms is None or row.roofline_ms <= 0 or row.step_ms <= 0:
            return
        log_ratio = math.log(row.step_ms / row.roofline_ms)
        near = (key.gpu_type, key.method)
        for group in ((), (key.method,), (key.gpu_type,), near, (*near, key.model)):
            total, samples = self._ratios.get(group, (0.0, 0.0))
            weight = sign * min(row.samples, 1 / NEWEST_WEIGHT)
            self._ratios[group] = (total + weight * log_ratio, samples + weight)


def updated(before: MeasuredStep | None, measured_ms: float, roofline_ms: float | None) -> MeasuredStep:
    """The row after one more measurement: a plain mean of the first few, then the newest counts `NEWEST_WEIGHT`."""
    if before is None:
        return MeasuredStep(measured_ms, 1, roofline_ms)
    weight = max(NEWEST_WEIGHT, 1 / (before.samples + 1))
    mean = before.step_ms + weight * (measured_ms - before.step_ms)
    return MeasuredStep(mean, before.samples + 1, before.roofline_ms if roofline_ms is None else roofline_ms)


def key_of(name: str, training: Training, gpu_type: str, layers: int) -> StepKey:
    """Where a step of this training is kept."""
    return StepKey(
        model=name,
        gpu_type=plain_gpu(gpu_type),
        gpus=training.gpus,
        micro_batch=training.batch,
        accumulation=training.accumulation,
        sequence=training.usual_tokens,
        method=_method(training),
        frozen_layers=0 if training.method == "full" else layers,
        precision=training.precision + ("+autocast" if training.autocast else ""),
        checkpointing=training.checkpointing,
        parallelism=f"{_spread(training)}/tp{training.tensor_parallel}",
    )


def _spread(training: Training) -> str:
    """What the recipe splits is passed on otherwise than what scripts do."""
    return f"{'frozen-' if training.splits_frozen else 'exact-' if training.splits_all else ''}{training.sharding}"


def _method(training: Training) -> str:
    return training.method + ("+reference" if training.reference_pass else "")


def plain_gpu(gpu_type: str) -> str:
    """One name for all spellings of a type."""
    return "".join(letter for letter in gpu_type.casefold() if letter.isalnum())
