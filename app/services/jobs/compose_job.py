"""Turn a request into the row that is written: units converted, defaults filled in. No I/O.

The limits of every number are those of the wire models, which have been checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic_core import to_json

from allpass.process_counts import fixed_processes
from allpass.wire.deadlines import parse_deadline
from allpass.wire.jobs import JobRequest, SweepRequest
from allpass.wire.template import Placement, Template
from app.core import codec
from app.core.gpu_speeds import GpuSpeeds
from app.core.model.job import PriorityClass
from app.core.model.money import Money
from app.core.resizing import LEAST, MOST_GPUS
from app.db.apps.versions import AppVersion
from app.db.jobs.submissions import NewJob, OneJob, RequestedJob, StatedJob
from app.errors import InvalidInput

BYTES_PER_GB = 10**9
MAX_COST = "template.caps.max_cost_usd"
_NO_LABELS = "{}"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a request that says nothing gets."""

    deadline_ms: int
    checkpoint_interval_s: int


class Predicted(NamedTuple):
    """What each GPU of a job has to have, how long a step takes, and the plan in words; 0 and None where nothing is
    predicted. `by_type`: the types of GPU on which runs corrected what is needed.
    `host_bytes`: what the machine has to have beside its GPUs. `speeds`: on which type of GPU a step takes so long, and
    what it takes on others."""

    gpu_memory_bytes: int = 0
    step_ms: float | None = None
    plan: str | None = None
    by_type: tuple[tuple[str, int], ...] = ()
    host_bytes: int = 0
    speeds: GpuSpeeds | None = None


NOTHING_STATED = Predicted()


def compose_jobs(
    job_ids: Sequence[str],
    project_id: str,
    app: AppVersion,
    request: JobRequest | SweepRequest,
    parameter_sets: Sequence[Mapping[str, Any] | list[str]],
    *,
    now_ms: int,
    defaults: Defaults,
    sweep_id: str | None = None,
    key_id: str | None = None,
    predicted: Predicted = NOTHING_STATED,
    from_checkpoint_id: str | None = None,
    default_class: PriorityClass = PriorityClass.GUARANTEED,
) -> tuple[NewJob, ...]:
    """One row for each id and parameter set, in their order. Raises InvalidInput naming the field.

    `key_id`: of the API key that submits them. `predicted`: from the training that the template states; what it says
    itself of memory comes first. `default_class`: of jobs whose template names none.
    """
    template = _classed(request.template, default_class)
    deadline = request.soft_deadline
    due_ms = now_ms + defaults.deadline_ms if deadline is None else deadline_ms(deadline, now_ms)
    requested = RequestedJob(
        sweep_id=sweep_id,
        name=request.name or template.name or app.name,
        project_id=project_id,
        app_id=app.app_id,
        app_version_id=app.version_id,
        key_id=key_id,
        from_checkpoint_id=from_checkpoint_id,
        deadline_given=deadline is not None,
    )
    stated = _stated(template, app.content.base_image, defaults.checkpoint_interval_s, predicted)
    return tuple(
        NewJob(OneJob(job_id, _json(parameters, "parameters"), due_ms, now_ms), requested, stated)
        for job_id, parameters in zip(job_ids, parameter_sets, strict=True)
    )


# Jobs are submitted with the same few templates again and again. What is derived from one is remembered under its own
# JSON, which tells all of it but whether its kind was said: non-finite numbers, which JSON does not tell apart, are
# beyond every limit.
_DEFAULT_WAY = {"resize_by"}  # as an older release stores it, which would take a template with it for none
_derived: dict[tuple[bytes, bool, str | None, int, Predicted], StatedJob] = {}
_MOST_DERIVED = 1024
_LARGEST_REMEMBERED_BYTES = 8192


def _stated(template: Template, base_image: str | None, default_interval_s: int, predicted: Predicted) -> StatedJob:
    left_out = _DEFAULT_WAY if template.resize_by == "code" else None
    text: bytes = template.__pydantic_serializer__.to_json(template, exclude=left_out)
    key = text, "kind" in template.model_fields_set, base_image, default_interval_s, predicted
    known = _derived.get(key)
    if known is not None:
        return known
    _refuse_what_has_no_effect(template)
    derived = _derive(template, text.decode(), base_image, default_interval_s, predicted)
    if len(text) <= _LARGEST_REMEMBERED_BYTES:
        if len(_derived) >= _MOST_DERIVED:
            _derived.clear()
        _derived[key] = derived
    return derived


def _classed(template: Template, default_class: PriorityClass) -> Template:
    """With the class that its jobs have from now on, whatever becomes of the project's default."""
    if default_class == template.priority_class or "priority_class" in template.model_fields_set:
        return template
    if template.nodes > 1:  # such a job leaves no machine to others
        return template
    if default_class is PriorityClass.SPOT and template.placement.locked:
        raise InvalidInput(
            "template.placement.locked: jobs of this project are spot unless they say otherwise, and a spot job leaves "
            'its machine when a guaranteed job needs it; leave out locked, or say priority_class "guaranteed"',
            param="template.placement.locked",
        )
    return template.model_copy(update={"priority_class": default_class.value})


def _refuse_what_has_no_effect(template: Template) -> None:
    """Fields that are kept for what is not built yet, or that another one undoes: who writes one would take it for a
    promise. Templates that were stored with them are read as ever."""
    gpu = template.gpu
    if template.priority_class == "spot" and template.placement.locked:
        raise InvalidInput(
            "template.placement.locked: a spot job leaves its machine when a guaranteed job needs it; leave out locked "
            'or priority_class "spot"',
            param="template.placement.locked",
        )
    if template.nodes > 1:
        refuse_on_several(template)
    for field in ("most_per_switch", "most_per_rack"):
        most = getattr(template.placement, field)
        if most is not None and template.nodes == 1:
            param = f"template.placement.{field}"
            why = f"is {most}, of a job on several machines, and this one runs on one; say nodes, or leave it out"
            raise InvalidInput(f"{param}: {why}", param=param)
    if template.resize_by == "restart":
        _refuse_what_keeps_gpus(template)
    if gpu.is_range and gpu.max_count is not None and gpu.max_count > MOST_GPUS:
        raise InvalidInput(
            f"template.gpu.max_count: {gpu.max_count} are too many: a training that changes its GPUs has at most "
            f"{MOST_GPUS}, of one machine; say {MOST_GPUS}, or leave it out",
            param="template.gpu.max_count",
        )


def _refuse_what_keeps_gpus(template: Template) -> None:
    """Of a job that is restarted for other GPUs: what would make each restart fail, or begin with the number before."""
    if template.gpu.count > MOST_GPUS:
        raise InvalidInput(
            f"template.gpu.count: {template.gpu.count} are too many: a job that changes its GPUs has at most "
            f"{MOST_GPUS}, of one machine; say {MOST_GPUS}, or leave resize_by out",
            param="template.gpu.count",
        )
    fixed = fixed_processes(template.command or ())
    if fixed is not None:
        raise InvalidInput(
            f"template.command: {fixed} starts so many processes whatever GPUs there are, and resize_by: restart gives "
            "the job others; leave it out: torchrun and accelerate start one for each GPU by themselves",
            param="template.command",
        )


_ON_SEVERAL = "a job on several machines"


def refuse_on_several(template: Template) -> None:
    """What a job on several machines cannot have yet."""
    placement = template.placement
    for field, is_asked, why in (
        ("priority_class", template.priority_class == "spot", "leaves no machine to others: leave out spot"),
        ("gpu.max_count", template.gpu.is_range, "keeps its GPUs: leave out gpu.max_count"),
        ("elastic", template.elastic, "keeps its GPUs: leave out elastic"),
        ("resize_by", template.resize_by == "restart", "keeps its GPUs: leave out resize_by"),
        ("kind", template.kind == "interactive", "does not start on serverless: leave out interactive"),
        ("placement.affinity", bool(placement.affinity), "has machines of its own: leave out affinity"),
        ("placement.anti_affinity", bool(placement.anti_affinity), "has machines of its own: leave it out"),
        ("checkpoints.folders", template.checkpoints.folders is not None, "saves through ALLPASS_CHECKPOINT_DIR"),
    ):
        if is_asked:
            param = f"template.{field}"
            raise InvalidInput(f"{param}: {_ON_SEVERAL} (nodes: {template.nodes}) {why}", param=param)


def _derive(
    template: Template, text: str, base_image: str | None, default_interval_s: int, predicted: Predicted
) -> StatedJob:
    return StatedJob(
        labels=_json(template.labels, "template.labels") if template.labels else _NO_LABELS,
        template=text,
        resources=_resources(template, template.image or base_image, predicted),
        kind=template.kind,
        kind_said="kind" in template.model_fields_set,
        priority_class=template.priority_class,
        start=template.start,
        elastic=template.elastic,
        sharing=template.sharing and template.nodes == 1 and template.resize_by == "code",  # it is one process's
        affinity=_json(_said(template.placement), "template.placement"),
        checkpoint_interval_s=template.checkpoint_interval_s or default_interval_s,
        max_cost_micros=_micros(template.caps.max_cost_usd, MAX_COST),
        max_duration_ms=_ms(template.caps.max_duration_s),
        max_hourly_micros=_micros(template.caps.max_hourly_usd, "template.caps.max_hourly_usd"),
        max_wait_ms=_ms(template.caps.max_wait_s),
        retries=template.retries,
        total_steps=template.training.steps,
        plan=predicted.plan,
        predicted_step_ms=predicted.step_ms,
        gpu_speeds=None if predicted.speeds is None else codec.dumps(predicted.speeds).decode(),
    )


def _said(placement: Placement) -> dict[str, Any]:
    """Without bounds that nobody asks for."""
    return {name: value for name, value in placement.__dict__.items() if value is not None}


def _resources(template: Template, base_image: str | None, predicted: Predicted) -> str:
    gpu = template.gpu
    return to_json(
        {
            "gpus_min": gpu.count,
            "gpus_max": gpu.max_count or gpu.count,
            "gpu_type": gpu.type,
            "gpu_memory_bytes_min": _least_bytes(gpu.memory_gb, predicted),
            "cpus_min": template.cpus,
            "memory_bytes_min": max(int(template.memory_gb * BYTES_PER_GB), predicted.host_bytes),
            "base_image": base_image,
        }
        | ({"gpu_memory_bytes_by_type": predicted.by_type} if predicted.by_type else {})
        | ({"nodes": template.nodes} if template.nodes > 1 else {})
        | ({LEAST: gpu.count} if gpu.is_range else {})
    ).decode()


def _least_bytes(stated_gb: float | None, predicted: Predicted) -> int:
    return predicted.gpu_memory_bytes if stated_gb is None else int(stated_gb * BYTES_PER_GB)


def _ms(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1000


def _micros(usd: float | None, param: str) -> int | None:
    return None if usd is None else micros(usd, param)


@lru_cache(maxsize=1024)
def micros(usd: float, param: str) -> int:
    """Dollars as whole micro-dollars. Raises InvalidInput naming `param` for finer amounts."""
    try:
        return Money.usd(Decimal(str(usd))).micros
    except ValueError as error:
        raise InvalidInput(f"{param}: {error}; a micro-dollar is the smallest amount", param=param) from None


def deadline_ms(text: str, now_ms: int) -> int:
    """The moment that a soft deadline means, written at `now_ms`. Raises InvalidInput."""
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
