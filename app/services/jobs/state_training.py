"""What a job's template says of its training, in the words of the memory predictor."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from allpass.wire.plan import PlanRequest
from allpass.wire.template import Template
from app.core.memory.architecture import is_known
from app.core.memory.catalogue import MODELS, known_name
from app.core.memory.exact import Exact
from app.core.memory.need import Stated, StatedAlone
from app.errors import InvalidInput
from app.services.jobs.plan_job import asked_training, exact_of, plain_training

_FIELDS = {
    "model": "template.model.name",
    "method": "template.training.method",
    "batch": "template.training.batch_size",
    "sequence": "template.training.sequence_length",
    "precision": "template.training.precision",
    "optimizer": "template.training.optimizer",
    "rank": "template.training.lora_rank",
    "adapter_dropout": "template.training.lora_dropout",
    "narrow_adapters": "template.training.narrow_adapters",
    "loss": "template.training.loss",
    "row_tokens": "template.training.row_tokens",
    "precision_by_gpu": "template.training.precision_by_gpu",
    "reference_pass": "template.training.reference_pass",
    "sharded": "template.training.sharded",
    "autocast": "template.training.precision",
}


def stated_training(template: Template) -> Stated | None:
    """None where the template says too little, or names a model that is not in the table.

    Raises InvalidInput, naming the template's field, for a training that cannot be.
    """
    training = template.training
    if training.method is None or template.model is None:  # as most are: before anything is looked up
        return None
    if training.batch_size is None or training.sequence_length is None:
        return None
    exact = None if training.exact is None else exact_of(training.exact)
    key = (
        template.model.name,
        training.method,
        training.batch_size,
        training.sequence_length,
        training.precision,
        training.optimizer,
        training.lora_rank,
        training.lora_dropout,
        training.narrow_adapters,
        training.loss,
        training.row_tokens,
        training.precision_by_gpu,
        training.reference_pass,
        training.sharded,
        training.micro_batch,
        training.checkpointing,
        template.gpu.count,
        exact,
        None if template.model.config is None else tuple(sorted(template.model.config.items())),
    )
    return _stated(*key)


def stated_alone(template: Template) -> StatedAlone | None:
    """Of a model that the tables do not know, told by its symbolic runs; None where there are none, and for several
    GPUs, of which they say nothing. Raises InvalidInput, naming the template's field."""
    training, told = template.training, template.training.exact
    if told is None or training.method is None or template.model is None or template.gpu.count != 1:
        return None
    if training.batch_size is None or training.sequence_length is None:
        return None
    fields = {
        **_DEFAULTS,
        "model": template.model.name,
        "method": training.method,
        "batch": training.batch_size,
        "sequence": training.sequence_length,
        "optimizer": training.optimizer or "adamw",
        "rank": training.lora_rank,
        "adapter_dropout": training.lora_dropout,
        "narrow_adapters": training.narrow_adapters,
        "precision_by_gpu": training.precision_by_gpu,
        "loss": training.loss or "full",
        "reference_pass": training.reference_pass,
        **_precision(training.precision, training.method),
    }
    try:
        plain = plain_training(PlanRequest.model_construct(**fields))
    except InvalidInput as error:
        raise in_template_words(error) from None
    return StatedAlone(
        template.model.name,
        exact_of(told),
        plain,
        training.batch_size,
        training.micro_batch,
        training.checkpointing,
    )


@lru_cache(maxsize=1024)  # jobs are submitted with the same few templates again and again
def _stated(
    model_name: str,
    method: str,
    batch: int,
    sequence: int,
    precision: str | None,
    optimizer: str | None,
    rank: int | None,
    dropout: float | None,
    narrow_adapters: bool | None,
    loss: str | None,
    row_tokens: int | None,
    precision_by_gpu: bool | None,
    reference_pass: bool | None,
    sharded: bool | None,
    micro_batch: int | None,
    checkpointing: bool | None,
    gpus: int,
    exact: Exact | None,
    config: tuple[tuple[str, Any], ...] | None,
) -> Stated | None:
    known, told = known_name(model_name), dict(config or ())
    if known is None and not is_known(told):
        return None
    fields: dict[str, Any] = {
        # its configuration counts before its name, which may be a folder's
        **({"config": {**told, "_name_or_path": model_name}} if is_known(told) else {"model": known}),
        "method": method,
        "batch": batch,
        "sequence": sequence,
        "optimizer": optimizer or "adamw",
        "rank": rank,
        "adapter_dropout": dropout,
        "narrow_adapters": narrow_adapters,
        "loss": loss or "full",
        "row_tokens": row_tokens,
        "precision_by_gpu": precision_by_gpu,
        "reference_pass": reference_pass,
        "sharded": sharded,
        **_precision(precision, method),
    }
    try:
        name, model, plain = asked_training(PlanRequest.model_construct(**(_DEFAULTS | fields)))
    except InvalidInput as error:
        raise in_template_words(error) from None
    name = known if known is not None and model == MODELS[known] else name
    return Stated(name, model, plain, batch, gpus, micro_batch, checkpointing, exact)


def in_template_words(error: InvalidInput) -> InvalidInput:
    """The same refusal, naming the template's field."""
    if (error.param or "").startswith("config"):
        return InvalidInput(f"template.model.{error.message}", param="template.model.config")
    field = _FIELDS.get(error.param or "", "template.training")
    return InvalidInput(f"{field}: {error.message}", param=field)


_DEFAULTS: dict[str, Any] = {
    name: field.get_default(call_default_factory=True)
    for name, field in PlanRequest.model_fields.items()
    if not field.is_required()
}


def _precision(told: str | None, method: str) -> dict[str, Any]:
    if told == "autocast":  # quantised weights have no float32 copy
        return {"precision": "bf16", "autocast": True} if method == "qlora" else {"precision": "amp_bf16"}
    return {"precision": told or "bf16"}
