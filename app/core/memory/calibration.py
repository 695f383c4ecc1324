"""How far predictions were off for runs of one kind, and estimates corrected by it. Pure.

A kind is a family of models, a method, the kernels, a type of GPU and the versions of the libraries. A few runs move an
estimate little: what was measured counts `n / (n + PRIOR)` against the model. Switching a calibration off, or deleting
it, brings the model's own estimate back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.core.memory.architecture import Architecture
from app.core.memory.fit import CONTEXT_BYTES, FRAGMENTATION_MEDIAN, Estimate, Range
from app.core.memory.training import Training
from app.core.throughput import plain_gpu

PRIOR = 3.0
ENOUGH = 5
"""Measured runs without which a calibration makes nothing fit that the model alone would not let through."""

NEWEST_WEIGHT = 0.2  # of the newest run in the mean
_MOST_RATIO = 2.0  # a run that is further off was not the run that was described
_MOST_FRAGMENTATION = 1.0


@dataclass(frozen=True, slots=True, order=True)
class TrainingKind:
    """`kernel`: attention and loss. `versions`: e.g. `torch 2.3, transformers 4.45`."""

    family: str
    method: str
    kernel: str
    gpu_type: str
    versions: str


@dataclass(frozen=True, slots=True)
class Calibration:
    """`log_ratio`: of measured to predicted allocated bytes. `fragmentation`: reserved over allocated, less one.
    `overhead_bytes`: of the process over reserved. All are means, newer runs counting more."""

    samples: int
    log_ratio: float
    fragmentation: float
    overhead_bytes: int


@dataclass(frozen=True, slots=True)
class Observed:
    """Peaks that one run measured, on one GPU. `out_of_memory_bytes`: it needed more than this capacity, and what it
    measured is only how far it came."""

    allocated: int | None = None
    reserved: int | None = None
    process: int | None = None
    out_of_memory_bytes: int | None = None


def kind_of(model: Architecture, training: Training, gpu_type: str, versions: Mapping[str, str]) -> TrainingKind:
    """The kind of a run. Of versions, major and minor matter."""
    told = ", ".join(f"{name} {short_version(version)}" for name, version in sorted(versions.items()))
    kernel = f"{training.attention}/{training.loss}"
    return TrainingKind(model.family, training.method, kernel, plain_gpu(gpu_type), told)


def short_version(version: str) -> str:
    """`2.3.0+cu121` -> `2.3`."""
    return ".".join(version.partition("+")[0].split(".")[:2])


def learned(before: Calibration | None, predicted: Estimate, observed: Observed) -> Calibration | None:
    """The calibration after one more run; None where nothing can be learned from it."""
    ratio = _log_ratio(before, predicted, observed)
    if ratio is None:
        return None
    if before is None:
        before = Calibration(0, 0.0, FRAGMENTATION_MEDIAN, CONTEXT_BYTES)
    weight = max(NEWEST_WEIGHT, 1 / (before.samples + 1))
    fragmentation, overhead = before.fragmentation, float(before.overhead_bytes)
    if observed.out_of_memory_bytes is None and observed.allocated and observed.reserved:
        wasted = min(_MOST_FRAGMENTATION, max(0.0, observed.reserved / observed.allocated - 1))
        fragmentation += weight * (wasted - fragmentation)
        if observed.process is not None:
            overhead += weight * (max(0, observed.process - observed.reserved) - overhead)
    return Calibration(
        before.samples + 1, before.log_ratio + weight * (ratio - before.log_ratio), fragmentation, round(overhead)
    )


def _log_ratio(before: Calibration | None, predicted: Estimate, observed: Observed) -> float | None:
    limit = math.log(_MOST_RATIO)
    if observed.out_of_memory_bytes is not None:
        at_least = math.log(observed.out_of_memory_bytes / max(predicted.process.expected, 1))
        known = 0.0 if before is None else before.log_ratio
        return min(limit, at_least) if at_least > known else None  # else it says nothing new
    if not observed.allocated:
        return None
    return max(-limit, min(limit, math.log(observed.allocated / max(predicted.allocated.expected, 1))))


def corrected(found: Estimate, calibration: Calibration | None) -> Estimate:
    """The estimate as runs of its kind turned out. The bounds keep their relative width. Before `ENOUGH` runs were
    measured, what is needed to be sure never falls below the model's own number."""
    if calibration is None or calibration.samples <= 0:
        return found
    weight = calibration.samples / (calibration.samples + PRIOR)
    ratio = math.exp(weight * calibration.log_ratio)
    fragmentation = FRAGMENTATION_MEDIAN + weight * (calibration.fragmentation - FRAGMENTATION_MEDIAN)
    more = (1 + fragmentation) / (1 + FRAGMENTATION_MEDIAN)
    overhead = round(CONTEXT_BYTES + weight * (calibration.overhead_bytes - CONTEXT_BYTES))
    allocated = _scaled(found.allocated, ratio)
    expected = round(allocated.expected * (1 + fragmentation))
    reserved = Range(allocated.low, expected, max(expected, round(found.reserved.high * ratio * more)))
    process = Range(*(each + overhead for each in (reserved.low, reserved.expected, reserved.high)))
    wasted = (found.needed - found.allocated.high - CONTEXT_BYTES) * ratio
    wasted += allocated.expected * (fragmentation - FRAGMENTATION_MEDIAN)
    needed = allocated.high + round(wasted) + overhead
    floor = found.needed if calibration.samples < ENOUGH else 0
    return Estimate(found.peak, allocated, reserved, process, max(needed, floor))


def _scaled(told: Range, ratio: float) -> Range:
    return Range(round(told.low * ratio), round(told.expected * ratio), round(told.high * ratio))


class Calibrations:
    """What a project has learned. A question is answered by the newest versions that were measured."""

    def __init__(self, rows: Iterable[tuple[TrainingKind, Calibration]] = ()) -> None:
        """`rows`: the newest last."""
        self._newest = {_without_versions(kind): calibration for kind, calibration in rows}

    def of(self, model: Architecture, training: Training, gpu_type: str) -> Calibration | None:
        """The one for this kind of run; None where nothing like it was measured."""
        if not self._newest:
            return None
        return self._newest.get(_without_versions(kind_of(model, training, gpu_type, {})))

    def corrections(self, model: Architecture, training: Training) -> dict[str, Calibration]:
        """Those for this kind of run, by type of GPU."""
        family, method, kernel, _ = _without_versions(kind_of(model, training, "", {}))
        return {kind[3]: found for kind, found in self._newest.items() if kind[:3] == (family, method, kernel)}


def _without_versions(kind: TrainingKind) -> tuple[str, str, str, str]:
    return kind.family, kind.method, kind.kernel, kind.gpu_type
