"""What the other side tells of a fine-tuning job, checked: nothing of it becomes a path or a number unseen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from allpass.errors import InvalidInput, UnexpectedReply

_JOB_ID = re.compile(r"ft[A-Za-z0-9_-]{1,100}\Z")
_FILE_ID = re.compile(r"[A-Za-z0-9_-]{1,200}\Z")
_NUMBERS = ("n_epochs", "batch_size", "learning_rate_multiplier", "beta")
_ENDED = frozenset({"succeeded", "failed", "cancelled"})
_SEEDS = 2**31
METHODS = ("supervised", "dpo", "reinforcement")


@dataclass(frozen=True)
class OldJob:
    """`hyperparameters`: numbers, or "auto". `suffix`: of its model's name."""

    id: str
    model: str
    status: str
    method: str
    hyperparameters: Mapping[str, float | str]
    training_file: str
    validation_file: str | None
    result_files: tuple[str, ...]
    seed: int | None
    suffix: str | None
    trained_tokens: int | None
    created_at: int | None
    finished_at: int | None

    @property
    def has_ended(self) -> bool:
        return self.status in _ENDED


def check_job_id(job_id: str, option: str) -> str:
    """Raises InvalidInput for what no fine-tuning job is called."""
    if not _JOB_ID.match(job_id):
        raise InvalidInput(f"{option}: {job_id[:80]!r} is not the id of a fine-tuning job", hint=f"{option} ftjob-...")
    return job_id


def read_job(told: Any) -> OldJob:
    """Raises UnexpectedReply, naming the field."""
    if not isinstance(told, dict):
        raise UnexpectedReply(f"a fine-tuning job is told as {type(told).__name__}, not as an object")
    job_id = told.get("id")
    if not isinstance(job_id, str) or not _JOB_ID.match(job_id):
        raise UnexpectedReply(f"id: {str(job_id)[:80]!r} is not the id of a fine-tuning job")
    training_file = _file(told, "training_file")
    if training_file is None:
        raise UnexpectedReply(f"{job_id}: training_file is missing")
    results = told.get("result_files")
    method, hyperparameters = _method(told)
    return OldJob(
        id=job_id,
        model=_text(told, "model", 500) or "unknown",
        status=_text(told, "status", 40) or "unknown",
        method=method,
        hyperparameters=hyperparameters,
        training_file=training_file,
        validation_file=_file(told, "validation_file"),
        result_files=tuple(one for one in results if isinstance(one, str) and _FILE_ID.match(one))
        if isinstance(results, list)
        else (),
        seed=_whole(told, "seed", _SEEDS - 1),
        suffix=_suffix(told),
        trained_tokens=_whole(told, "trained_tokens"),
        created_at=_whole(told, "created_at"),
        finished_at=_whole(told, "finished_at"),
    )


def read_size(told: Mapping[str, Any]) -> int | None:
    """Of a file object."""
    return _whole(told, "bytes")


def number(value: Any) -> float | None:
    """None for what is no finite number."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e300 else None


def _method(told: Mapping[str, Any]) -> tuple[str, dict[str, float | str]]:
    method = told.get("method")
    method = method if isinstance(method, dict) else {}
    kind = str(method.get("type") or METHODS[0])[:40]
    own = method.get(kind)
    numbers = own.get("hyperparameters") if isinstance(own, dict) else None
    found: dict[str, float | str] = {}
    for source in (told.get("hyperparameters"), numbers):
        if isinstance(source, dict):
            found |= {
                name: value for name in _NUMBERS if (value := _hyperparameter(name, source.get(name))) is not None
            }
    return kind, found


def _hyperparameter(name: str, told: Any) -> float | str | None:
    value = number(told)
    if value is None:
        return "auto" if told == "auto" else None
    return int(value) if value.is_integer() and name in ("n_epochs", "batch_size") else value


def _suffix(told: Mapping[str, Any]) -> str | None:
    """As it was given, else as it is in the model's name: ft:BASE:ORGANIZATION:SUFFIX:ID."""
    given = _text(told, "user_provided_suffix", 64)
    parts = (_text(told, "fine_tuned_model", 500) or "").split(":")
    return given or (parts[3][:64] if len(parts) >= 5 and parts[0] == "ft" else None) or None


def _file(told: Mapping[str, Any], name: str) -> str | None:
    value = told.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not _FILE_ID.match(value):
        raise UnexpectedReply(f"{told.get('id')}: {name}: {str(value)[:80]!r} is not the id of a file")
    return value


def _text(told: Mapping[str, Any], name: str, longest: int) -> str | None:
    value = told.get(name)
    return value[:longest] if isinstance(value, str) else None


def _whole(told: Mapping[str, Any], name: str, most: int = 2**53) -> int | None:
    value = told.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None
