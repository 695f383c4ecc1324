"""`finetune()`: a fine-tuning without code of one's own, submitted."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from allpass.client import Client
from allpass.errors import InvalidInput
from allpass.job import Job
from allpass.recipe.looking import find_tokenizer
from allpass.recipe.mixtures import refuse_mixture
from allpass.recipe.packing import Dataset, Packed, pack
from allpass.recipe.reading import name_of
from allpass.recipe.shapes import find_config
from allpass.submission import app_request, job_request, with_secrets
from allpass.templates import load_template
from allpass.wire.apps import AppRequest
from allpass.wire.jobs import JobRequest
from allpass.wire.template import Template

_OF_ONE_WORD = re.compile(
    r"(gpt2|distilgpt2|openai-gpt|bert-|distilbert-|roberta-|distilroberta-|albert-|t5-|xlm-|xlnet-|camembert-|ctrl$)"
)


def finetune(
    model: str,
    dataset: Dataset,
    *,
    method: str = "lora",
    target: Mapping[str, float] | None = None,
    held_out: float | Dataset = 0.1,
    name: str | None = None,
    app_name: str | None = None,
    user_name: str | None = None,
    template: str | os.PathLike[str] | Mapping[str, Any] | Template | None = None,
    soft_deadline: str | timedelta | datetime | None = None,
    base_image: str | None = None,
    secrets: Sequence[str] | None = None,
    from_checkpoint: str | None = None,
    client: Client | None = None,
    idempotency_key: str | None = None,
    **settings: Any,
) -> Job:
    """Fine-tune a model on rows of text; returns at once with the job's handle.

    model         a name of the Hugging Face hub, or the path of a folder that the machines have
    dataset       a JSON lines, CSV or Parquet file, a data set of the hub (org/name, org/name:split), or a list of
                  dicts. Rows have prompt and completion, messages, or text, or are Alpaca's or ShareGPT's; text and
                  label train a classifier; of chosen and rejected, the one is learned to be preferred
    method        lora, qlora or full
    target        end as soon as it is reached: {"eval_accuracy": 0.9} or {"eval_loss": 1.2}
    held_out      the share of rows to measure with, or rows of their own
    name          of the job; app_name: of the app, under which jobs on these rows are counted together
    settings      epochs, steps, batch_size, learning_rate, sequence_length, precision, seed ... (`Recipe` has them all)

    The rest is as in `App.run`. Every row is checked before anything is sent: raises InvalidData with row and field,
    InvalidInput for a setting, InvalidTemplate for a field of the template that the recipe fills in.
    """
    config = check_model(model)
    given = {"model": model, "method": method, **({} if target is None else {"target": dict(target)}), **settings}
    filled = with_secrets(load_template(template), secrets)
    tokenizer, _ = find_tokenizer(model, config)
    packed = pack(given, dataset, held_out=held_out, template=filled, config=config, tokenizer=tokenizer)
    options: dict[str, Any] = {
        "name": name,
        "template": packed.template,
        "parameters": packed.parameters,
        "soft_deadline": soft_deadline,
        "from_checkpoint": from_checkpoint,
    }
    job_request("app", None, **options)  # all is checked before the first byte leaves
    registration = registration_of(packed, app_name or app_name_of(model, dataset), user_name, base_image)
    used = client or Client()
    used.upload(packed.bundle)
    app = used.register_app(registration)
    request = job_request(app.id, app.version, **options)
    if not isinstance(request, JobRequest):
        raise TypeError("a recipe's parameters are one object")
    return Job(used.submit_job(request, idempotency_key=idempotency_key).id, used)


def check_model(model: str) -> dict[str, Any] | None:
    """The model's configuration, where it can be had.

    Raises InvalidInput for what can be neither a folder nor a name of the hub: there, only models from before it had
    organisations have a name of one word; and for a mixture of experts.
    """
    if not (is_model_name(model) or Path(model).exists()):
        raise InvalidInput(
            f"model: {model!r} is neither a folder nor a name of the hub, which looks like organisation/model",
            hint="HuggingFaceTB/SmolLM2-135M",
        )
    config = find_config(model)
    refuse_mixture(model, config)
    return config


def is_model_name(model: str) -> bool:
    """Whether it may be one of the hub, or a path."""
    return "/" in model or "\\" in model or _OF_ONE_WORD.match(model) is not None


def registration_of(packed: Packed, name: str, user_name: str | None, base_image: str | None) -> AppRequest:
    """The app of a fine-tuning: its rows, and the packages that it needs."""
    runtime = {"base_image": base_image, "pip": packed.pip}
    user = user_name or getpass.getuser()
    return app_request(name, user, runtime, packed.bundle.sha256, packed.bundle.entrypoint)


def app_name_of(model: str, dataset: Dataset) -> str:
    """Of what is trained on what: `SmolLM2-135M-support`."""
    return app_name(model, name_of(dataset))


def app_name(model: str, source: str) -> str:
    """The same by the name of a file."""
    base = re.split(r"[/\\]", model.rstrip("/\\"))[-1]
    return f"{base}-{source.partition('.')[0]}"[:100]
