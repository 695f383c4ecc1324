"""A fine-tuning that is asked for through a door: checked as far as is known at once, and written down.

From then on it is ours: the process that took it makes a job of it, and if that dies, the leader does
(`advance_tuning.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from allpass.recipe.settings import Recipe
from app.core.model.ids import is_id
from app.db.access.audit import Author
from app.db.connection import Connection
from app.db.doors.files import DoorFile, find_file
from app.db.doors.tunings import FineTuning, add_tuning
from app.errors import InvalidInput
from app.ports.clock import IdSource
from app.services.doors.models import TUNED, Meant
from app.services.doors.store_file import TO_TRAIN_ON, door_id
from app.services.doors.track_tuning import tracked_settings, tracked_template

EPOCHS = 3
LARGEST_BATCH = 16
_ROWS_PER_STEP_ROW = 50  # with fewer rows a batch is smaller, so that an epoch is not two steps
_RATES = {"dpo": 5e-6}
_RATE = 2e-4
_TAIL = 8
# What of the recipe may be said beside OpenAI's own words. Nothing here names a place on the server.
OWN_SETTINGS = frozenset(
    {
        "method", "steps", "sequence_length", "schedule", "warmup", "weight_decay", "clip_norm", "precision",
        "lora_rank", "lora_alpha", "lora_dropout", "micro_batch", "checkpointing", "packing", "optimizer",
        "evaluate_every", "target", "patience", "export", "use_rslora", "use_dora", "sharded",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TuningAsked:
    """What was asked for. `hyperparameters`: those that were given a number; what is left out is "auto"."""

    training_file: str
    validation_file: str | None
    method: str
    hyperparameters: Mapping[str, float]
    seed: int
    suffix: str | None
    metadata: Mapping[str, str]
    integrations: list[dict[str, Any]]
    deadline: str | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


async def create_tuning(
    connection: Connection, ids: IdSource, author: Author, asked: TuningAsked, meant: Meant, *, now_ms: int
) -> FineTuning:
    """Written in this transaction. Raises InvalidInput naming what is wrong, as the other side's API names it."""
    project_id = author.project_id
    train = await _training_file(connection, project_id, "training_file", asked.training_file, now_ms)
    if asked.validation_file is not None:
        await _training_file(connection, project_id, "validation_file", asked.validation_file, now_ms)
    _check_method(asked.method, train)
    tuning_id = door_id("ftjob-", ids)
    template = dict(asked.template)
    if asked.integrations:
        template = await tracked_template(connection, project_id, template)
    settings = settings_of(asked, meant.base, train.row_count or 0) | tracked_settings(
        asked.integrations, meant.base, tuning_id
    )
    tuning = FineTuning(
        id=tuning_id,
        project_id=project_id,
        job_id=None,
        request={
            "method": asked.method,
            "hyperparameters": _shown(asked, settings),
            "settings": settings,
            "template": template,
            "deadline": asked.deadline,
            "seed": asked.seed,
            "suffix": asked.suffix,
            "metadata": dict(asked.metadata),
            "integrations": asked.integrations,
        },
        model=meant.name,
        base_model=meant.base,
        adapter_of=None if meant.tuning is None else meant.tuning.id,
        training_file_id=train.id,
        validation_file_id=asked.validation_file,
        author={"key_id": author.key_id, "request_id": author.request_id, "route": author.route},
        fine_tuned_model=model_name(meant.name, project_id, asked.suffix, tuning_id),
        error=None,
        created_ms=now_ms,
        ended_ms=None,
        model_deleted_ms=None,
    )
    await add_tuning(connection, tuning)
    return tuning


def settings_of(asked: TuningAsked, model: str, rows: int) -> dict[str, Any]:
    """The recipe's settings. Raises InvalidInput for one that the recipe refuses."""
    given = asked.hyperparameters
    batch = max(1, min(LARGEST_BATCH, rows // _ROWS_PER_STEP_ROW))
    rate = _RATES.get(asked.method, _RATE) * given.get("learning_rate_multiplier", 1.0)
    settings: dict[str, Any] = {
        "model": model,
        "method": "lora",
        "epochs": float(given.get("n_epochs", EPOCHS)),
        "batch_size": int(given.get("batch_size", batch)),
        "learning_rate": rate,
        "seed": asked.seed,
        **({"beta": given["beta"]} if "beta" in given else {}),
        **({"task": "dpo"} if asked.method == "dpo" else {}),
        **asked.settings,
    }
    try:
        Recipe.new(settings)
    except ValueError as error:
        message = getattr(error, "message", str(error))
        raise InvalidInput(message, param=message.partition(":")[0], code="invalid_hyperparameters") from None
    return settings


def model_name(model: str, project_id: str, suffix: str | None, tuning_id: str) -> str:
    """`ft:gpt-4o-mini:<project>:<suffix>:<tail>`: as the other side has it. Of a model that is tuned again, the name of
    the first one."""
    base = model.split(":")[1] if model.startswith(TUNED) else model
    team = project_id.rpartition("_")[2][-_TAIL:].lower() if is_id(project_id, "proj") else project_id
    middle = re.sub(r"[^A-Za-z0-9._-]", "-", suffix or "")
    return f"{TUNED}{base}:{team}:{middle}:{tuning_id[-_TAIL:]}"


def _shown(asked: TuningAsked, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the job says of itself: with numbers where "auto" was asked for."""
    shown = {
        "n_epochs": round(settings["epochs"]) or 1,
        "batch_size": settings["batch_size"],
        "learning_rate_multiplier": asked.hyperparameters.get("learning_rate_multiplier", 1.0),
    }
    if asked.method == "dpo":
        shown["beta"] = asked.hyperparameters.get("beta", 0.1)
    return shown


async def _training_file(connection: Connection, project_id: str, param: str, file_id: str, now_ms: int) -> DoorFile:
    file = await find_file(connection, project_id, file_id, now_ms=now_ms)
    if file is None:
        raise InvalidInput(
            f"{param}: file {file_id[:100]} does not exist, or was deleted", param=param, code="invalid_file_id"
        )
    if file.purpose != TO_TRAIN_ON:
        raise InvalidInput(
            f"{param}: {file_id} was uploaded with purpose {file.purpose!r}; upload it with {TO_TRAIN_ON!r}",
            param=param,
            code="invalid_file_purpose",
        )
    report = file.report or {}
    if "problems" in report:
        code = "invalid_training_file" if param == "training_file" else "invalid_validation_file"
        raise InvalidInput(f"{param}: {report['message']}", param=param, code=code)
    return file


def _check_method(method: str, train: DoorFile) -> None:
    shape = str((train.report or {}).get("shape", ""))
    is_pairs = shape.startswith("pair")
    if method == "dpo" and not is_pairs:
        what = "rows of method dpo have input, preferred_output and non_preferred_output"
    elif method == "supervised" and is_pairs:
        what = "its rows are pairs of answers, which method dpo learns from"
    elif shape == "labelled":
        what = "its rows have labels: train a classifier with `allpass finetune`"
    else:
        return
    raise InvalidInput(f"training_file: {what}", param="training_file", code="invalid_training_file")
