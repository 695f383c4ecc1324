"""Turn a request into the row that is written: numbers checked, units converted, defaults filled in. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

from pydantic_core import to_json

from allpass.wire.deadlines import parse_deadline
from allpass.wire.jobs import JobRequest, SweepRequest
from allpass.wire.template import Template
from app.core.model.money import Money
from app.db.apps import AppVersion
from app.db.submissions import NewJob
from app.errors import InvalidInput

BYTES_PER_GB = 10**9
_MOST_STEPS = 10**15
_LONGEST_DURATION_S = 10 * 365 * 86_400
_NO_LABELS = "{}"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a request that says nothing gets."""

    deadline_ms: int
    checkpoint_interval_s: int


def compose_job(
    job_id: str,
    project_id: str,
    app: AppVersion,
    request: JobRequest | SweepRequest,
    parameters: Mapping[str, Any] | list[str],
    *,
    now_ms: int,
    defaults: Defaults,
    sweep_id: str | None = None,
) -> NewJob:
    """The row of one job. Raises InvalidInput naming the field."""
    template = request.template
    check_numbers(template)
    return NewJob(
        id=job_id,
        project_id=project_id,
        app_id=app.app_id,
        app_version_id=app.version_id,
        sweep_id=sweep_id,
        name=request.name or template.name or app.name,
        labels=_json(template.labels, "template.labels") if template.labels else _NO_LABELS,
        parameters=_json(parameters, "parameters"),
        template=template.__pydantic_serializer__.to_json(template).decode(),
        resources=_resources(template, app.content.base_image),
        kind=template.kind,
        priority_class=template.priority_class,
        start=template.start,
        elastic=template.elastic,
        sharing=template.sharing,
        affinity=_json(template.placement.__dict__, "template.placement"),
        checkpoint_interval_s=template.checkpoint_interval_s or defaults.checkpoint_interval_s,
        max_cost_micros=_max_cost(template),
        max_duration_ms=None if template.caps.max_duration_s is None else template.caps.max_duration_s * 1000,
        deadline_ms=_deadline_ms(request.soft_deadline, now_ms, defaults.deadline_ms),
        deadline_given=request.soft_deadline is not None,
        total_steps=template.training.steps,
        submitted_ms=now_ms,
    )


def check_numbers(template: Template) -> None:
    """Raises InvalidInput for numbers that are no numbers, or larger than can be counted with."""
    training = template.training
    if training.steps is not None and training.steps > _MOST_STEPS:
        raise InvalidInput(
            f"template.training.steps: {training.steps} is more than {_MOST_STEPS}", param="template.training.steps"
        )
    duration_s = template.caps.max_duration_s
    if duration_s is not None and duration_s > _LONGEST_DURATION_S:
        raise InvalidInput(
            f"template.caps.max_duration_s: {duration_s} is more than ten years", param="template.caps.max_duration_s"
        )
    floats = {"training.epochs": training.epochs, "training.learning_rate": training.learning_rate}
    if template.target is not None:
        floats["target.value"] = template.target.value
    for name, value in floats.items():
        if value is not None and not math.isfinite(value):
            raise InvalidInput(f"template.{name}: {value} is not a finite number", param=f"template.{name}")


def _resources(template: Template, base_image: str | None) -> str:
    gpu = template.gpu
    return to_json(
        {
            "gpus_min": gpu.count,
            "gpus_max": (gpu.max_count or gpu.count) if template.elastic else gpu.count,
            "gpu_type": gpu.type,
            "gpu_memory_bytes_min": 0 if gpu.memory_gb is None else int(gpu.memory_gb * BYTES_PER_GB),
            "cpus_min": template.cpus,
            "memory_bytes_min": int(template.memory_gb * BYTES_PER_GB),
            "base_image": base_image,
        }
    ).decode()


def _max_cost(template: Template) -> int | None:
    usd = template.caps.max_cost_usd
    return None if usd is None else _micros(usd)


@lru_cache(maxsize=1024)
def _micros(usd: float) -> int:
    try:
        return Money.usd(Decimal(str(usd))).micros
    except ValueError as error:
        raise InvalidInput(
            f"template.caps.max_cost_usd: {error}; a micro-dollar is the smallest amount",
            param="template.caps.max_cost_usd",
        ) from None


def _deadline_ms(text: str | None, now_ms: int, default_ms: int) -> int:
    if text is None:
        return now_ms + default_ms
    if text[-1:].isalpha() and text[-1:] not in "zZ":  # a duration: instants end with digits or Z
        with suppress(ValueError):  # told below, with the present time in its words
            return now_ms + _duration_ms(text)
    try:
        return (parse_deadline(text, now=_EPOCH + now_ms * _MS) - _EPOCH) // _MS
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"soft_deadline: {error}", param="soft_deadline") from None


@lru_cache(maxsize=1024)
def _duration_ms(text: str) -> int:
    return (parse_deadline(text, now=_EPOCH) - _EPOCH) // _MS


def _json(value: Any, param: str) -> str:
    """JSON text. Numbers that JSON cannot write (1e999 reads as infinite) are refused."""
    text = to_json(value, inf_nan_mode="constants").decode()
    if ("Infinity" in text or "NaN" in text) and _has_non_finite(value):
        raise InvalidInput(f"{param}: holds a number that is not finite; JSON has no way to write it", param=param)
    return text


def _has_non_finite(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(_has_non_finite(one) for one in value.values())
    return isinstance(value, list) and any(_has_non_finite(one) for one in value)
