"""How fast the jobs of an app were at each size, as it is kept, and what that says of one that runs (ADR 0122). Pure.

Kept are steps per second by app, shape of the model, kind of GPU and number of GPUs. Jobs of one app differ in what a
step costs, and much less in what another GPU brings: of a run that was measured itself, at one size, the others are
taken in proportion.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.core.elastic.profile import MeasuredSpeed, SpeedProfile

NEWEST_WEIGHT = 0.3  # of the newest measurement in the mean
_LARGEST = 64  # GPUs of a machine
# What decides how long a step takes, of what a template states. Seeds and rates do not.
SHAPING = (
    "method", "batch_size", "sequence_length", "precision", "optimizer", "lora_rank", "micro_batch", "checkpointing",
    "sharded",
)  # fmt: skip


@dataclass(frozen=True, slots=True, order=True)
class SpeedKey:
    """Of what a table is kept. `gpu_type` as `plain_gpu` writes it."""

    app_id: str
    shape: str
    gpu_type: str


@dataclass(frozen=True, slots=True)
class KeptSpeed:
    """Newer measurements count more; `noise`: of the newest, half their range relative to the mean."""

    steps_per_s: float
    noise: float
    samples: int


def shape_of(model: object, training: object) -> str:
    """A word for what a template states of its model and training; empty where it states nothing that matters."""
    stated = training if isinstance(training, dict) else {}
    known: dict[str, Any] = {name: stated[name] for name in SHAPING if stated.get(name) is not None}
    if isinstance(model, str):
        known["model"] = model
    if not known:
        return ""
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:16]


def kept_after(before: KeptSpeed | None, found: MeasuredSpeed) -> KeptSpeed:
    """With one more measurement: a plain mean of the first few, then the newest counts `NEWEST_WEIGHT`."""
    if before is None:
        return KeptSpeed(found.speed, found.noise, 1)
    weight = max(NEWEST_WEIGHT, 1 / (before.samples + 1))
    mean = before.steps_per_s + weight * (found.speed - before.steps_per_s)
    return KeptSpeed(mean, found.noise, before.samples + 1)


def profile_of(
    asked: int, kept: Mapping[int, KeptSpeed], own: Mapping[int, MeasuredSpeed], predicted: Mapping[int, float]
) -> SpeedProfile:
    """Of a run: what it was measured at itself, then what others of its app were, in proportion. Between and beyond
    these what is predicted of its training (steps per second) has the say, where it is predicted at every size. Figures
    that are no positive numbers are left out. No size is the last one that is tried: where a step is cut into four
    parts, three GPUs are no faster than two, and four are."""
    others = {size: MeasuredSpeed(one.steps_per_s, one.noise) for size, one in kept.items()}
    measured = _in_proportion(_sound(others), _sound(own))
    is_sound = all(0 < one < math.inf for one in predicted.values())
    return SpeedProfile(asked, measured=measured, predicted=predicted if is_sound else {})


def _sound(speeds: Mapping[int, MeasuredSpeed]) -> dict[int, MeasuredSpeed]:
    return {
        size: one
        for size, one in speeds.items()
        if 0 < size <= _LARGEST and 0 < one.speed < math.inf and one.noise >= 0
    }


def _in_proportion(others: dict[int, MeasuredSpeed], own: dict[int, MeasuredSpeed]) -> dict[int, MeasuredSpeed]:
    """`own`, and the others scaled so that they agree with it where both are known; where none is, `own` alone."""
    if not own:
        return others
    both = sorted(own.keys() & others.keys())
    if not both:
        return own
    ratio = own[both[-1]].speed / others[both[-1]].speed
    return {size: replace(one, speed=one.speed * ratio) for size, one in others.items()} | own
