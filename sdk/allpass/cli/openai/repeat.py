"""A job that was imported, submitted to Allpass as it was: the same rows, method, numbers and seed on an open model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allpass.cli.openai import folder
from allpass.cli.openai.door import Door
from allpass.cli.openai.folder import REPEATED, TRAIN, VALID
from allpass.cli.openai.told import OldJob
from allpass.errors import Conflict, InvalidInput
from allpass.wire.model_names import OPEN_MODEL_PATTERN, ModelName

IMPORTED_FROM = "imported_from"
_OPEN = re.compile(OPEN_MODEL_PATTERN.removesuffix("$") + r"\Z")
_REPEATABLE = ("supervised", "dpo")
_OF_DPO_ALONE = "beta"


@dataclass(frozen=True)
class Wanted:
    """What is to be repeated: `model` as it is asked for, `meaning`: the open model that it means."""

    old: OldJob
    model: str
    meaning: str
    more: Mapping[str, Any] = field(default_factory=dict)
    again: bool = False


@dataclass(frozen=True)
class Repeated:
    """`job`: as the OpenAI-compatible API tells it. `is_new`: it was not there before."""

    job: Mapping[str, Any]
    is_new: bool

    @property
    def id(self) -> str:
        return str(self.job.get("id"))


def meaning_of(name: str, names: Iterable[ModelName]) -> str:
    """The open model that is meant. Raises InvalidInput for a name that means nothing on this server."""
    if _OPEN.match(name):
        return name
    if name.startswith("ft:"):
        base = name.split(":")[1] or "gpt-4o-mini"
        raise InvalidInput(
            f"model: {name} is itself a fine-tuned model, whose weights stay where they are; the job can be repeated "
            "on the model that it was made of, without what it had learned",
            hint=f"--model {base}",
        )
    found = next((one.model for one in names if one.name == name), None)
    if found is None:
        raise InvalidInput(
            f"model: {name!r} means no open model on this server",
            hint=f"--model Qwen/Qwen2.5-7B-Instruct, or allpass model-names set {name} Qwen/Qwen2.5-7B-Instruct",
        )
    return found


def repeat(door: Door, root: Path, wanted: Wanted) -> Repeated:
    """Submit it; where it was submitted before, that job is told, whoever did it. InvalidInput for what cannot be
    repeated, before anything of it is sent."""
    old = wanted.old
    place = folder.place(root, old.id)
    _check(old, place)
    before = _before(door, wanted)
    if before and not wanted.again:
        return Repeated(before[0], is_new=False)
    sent = _sent(door, place, old)
    key = hashlib.sha256("\n".join(["allpass import openai", old.id, wanted.model, str(len(before))]).encode())
    try:
        return Repeated(door.create(_body(wanted, sent), key.hexdigest()), is_new=True)
    except Conflict:  # somebody else has done it just now, with files of their own
        now = _before(door, wanted)
        if len(now) <= len(before):
            raise
        return Repeated(now[0], is_new=False)


def _check(old: OldJob, place: Path) -> None:
    if old.method not in _REPEATABLE:
        raise InvalidInput(
            f"{old.id}: method {old.method!r} cannot be repeated: Allpass trains {' and '.join(_REPEATABLE)}",
            hint="allpass finetune, with rows of your own",
        )
    needed = [TRAIN] + ([VALID] if old.validation_file is not None else [])
    missing = [name for name in needed if not (place / name).is_file()]
    if missing:
        raise InvalidInput(
            f"{place / missing[0]}: is not there, and the job was trained with it; if OpenAI has it no more, put your "
            "own copy there",
            hint=f"allpass import openai --job {old.id}, or cp my-rows.jsonl {place / missing[0]}",
        )


def _before(door: Door, wanted: Wanted) -> list[dict[str, Any]]:
    """Earlier ones of the same on the same model, newest first."""
    found = door.jobs_with({IMPORTED_FROM: wanted.old.id})
    return [one for one in found if one.get("model") == wanted.model]


def _sent(door: Door, place: Path, old: OldJob) -> dict[str, str]:
    """Ids of the files on the server; each is sent once, as long as it stays as it is."""
    noted = folder.read_object(place / REPEATED) or {}
    files: dict[str, str] = {}
    for name in (TRAIN, VALID):
        path = place / name
        if not path.is_file():
            continue
        mark = f"{name} {_sha256(path)} {door.address}"
        known = noted.get(mark)
        if not isinstance(known, str) or not door.has_file(known):
            known = door.upload(path, f"{old.id}-{name}")
            noted[mark] = known
            folder.write_object(place / REPEATED, noted)
        files[name] = known
    return files


def _body(wanted: Wanted, sent: Mapping[str, str]) -> dict[str, Any]:
    old = wanted.old
    numbers = {
        name: value for name, value in old.hyperparameters.items() if name != _OF_DPO_ALONE or old.method == "dpo"
    }
    return {
        "model": wanted.model,
        "training_file": sent[TRAIN],
        **({"validation_file": sent[VALID]} if VALID in sent else {}),
        "method": {"type": old.method, old.method: {"hyperparameters": numbers}},
        **({} if old.seed is None else {"seed": old.seed}),
        **({} if old.suffix is None else {"suffix": old.suffix}),
        "metadata": {IMPORTED_FROM: old.id},
        **({"allpass": dict(wanted.more)} if wanted.more else {}),
    }


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
