"""Which open model a name means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from app.core.model.job import JobState
from app.db.doors.model_names import read_names
from app.db.doors.tunings import FineTuning, find_by_model
from app.db.engine import Database
from app.db.jobs.reads import find_state
from app.errors import InvalidInput, NotFound

_SMALL, _MIDDLE, _LARGE = "Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-14B-Instruct"
# What a script that was written for OpenAI asks for. The owner of the installation may say otherwise, name by name.
KNOWN: Mapping[str, str] = {
    "gpt-4o-2024-08-06": _LARGE,
    "gpt-4o": _LARGE,
    "gpt-4o-mini-2024-07-18": _MIDDLE,
    "gpt-4o-mini": _MIDDLE,
    "gpt-4.1-2025-04-14": _LARGE,
    "gpt-4.1": _LARGE,
    "gpt-4.1-mini-2025-04-14": _MIDDLE,
    "gpt-4.1-mini": _MIDDLE,
    "gpt-4.1-nano-2025-04-14": _SMALL,
    "gpt-4.1-nano": _SMALL,
    "gpt-3.5-turbo": _MIDDLE,
    "gpt-3.5-turbo-0125": _MIDDLE,
    "gpt-3.5-turbo-1106": _MIDDLE,
    "gpt-3.5-turbo-0613": _MIDDLE,
    "babbage-002": "Qwen/Qwen2.5-0.5B",
    "davinci-002": "Qwen/Qwen2.5-1.5B",
}
TUNED = "ft:"
OPEN_MODEL = re.compile(r"(/[^\x00]{1,400}|[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})\Z", re.ASCII)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}\Z")


@dataclass(frozen=True, slots=True)
class Meant:
    """`base`: the open model. `tuning`: whose result it is, of a fine-tuned one."""

    name: str
    base: str
    tuning: FineTuning | None = None


async def names_in_use(database: Database) -> dict[str, str]:
    """All names that mean something, with what they mean."""
    async with database.statement() as connection:
        own = await read_names(connection)
    return {name: model for name, model in sorted({**KNOWN, **own}.items()) if model is not None}


async def resolve(database: Database, project_id: str, name: str) -> Meant:
    """Raises NotFound for a name that means nothing, and InvalidInput for a fine-tuned model that is not ready."""
    if name.startswith(TUNED):
        return await _tuned(database, project_id, name)
    if OPEN_MODEL.match(name):
        return Meant(name, name)
    names = await names_in_use(database)
    if name not in names:
        raise no_model(name)
    return Meant(name, names[name])


def no_model(name: str) -> NotFound:
    message = (
        f"The model '{name[:100]}' does not exist or you do not have access to it. Name an open model "
        "(Qwen/Qwen2.5-7B-Instruct), or one of the names that GET /v1/models lists"
    )
    return NotFound(message, param="model", code="model_not_found")


async def _tuned(database: Database, project_id: str, name: str) -> Meant:
    async with database.transaction() as connection:
        tuning = await find_by_model(connection, project_id, name)
        state = None
        if tuning is not None and tuning.job_id is not None:
            state = await find_state(connection, project_id, tuning.job_id)
    if tuning is None:
        raise no_model(name)
    if state is not JobState.SUCCEEDED:
        raise InvalidInput(
            f"The model '{name}' is not ready: its fine-tuning job {tuning.id} has not succeeded",
            param="model",
            code="model_not_ready",
        )
    return Meant(name, tuning.base_model, tuning)
