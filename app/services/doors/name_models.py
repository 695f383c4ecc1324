"""What names of models mean, as the owner of the installation has it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from allpass.wire.model_names import MODEL_NAME_PATTERN
from app.db.connection import Connection
from app.db.doors.model_names import delete_name, read_names, set_name
from app.errors import Conflict, InvalidInput, NotFound
from app.services.doors.models import KNOWN

MOST_NAMES = 1000  # that owners have set: each request at the door looks through them
_NAME = re.compile(MODEL_NAME_PATTERN.removesuffix("$") + r"\Z")
_SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True)
class NamedModel:
    """`model`: None where the name means nothing. `is_own`: an owner has said so."""

    name: str
    model: str | None
    is_own: bool

    @property
    def from_start(self) -> str | None:
        return KNOWN.get(self.name)


def check_name(name: str) -> None:
    """Raises InvalidInput for what no model can be called."""
    if not _NAME.match(name):
        shown = name if len(name) <= _SHOWN_CHARS else name[:_SHOWN_CHARS] + "…"
        raise InvalidInput(
            f"name: {shown!r} cannot be the name of a model; use 1 to 100 letters, digits, '.', '_', ':' and '-', not "
            "beginning with 'ft:' (e.g. gpt-4o-mini). An open model (org/name) needs no name",
            param="name",
        )


async def list_names(connection: Connection, *, after: str | None, limit: int) -> list[NamedModel]:
    """Sorted by name, of those behind `after`; names that are not known any more, too."""
    own = await read_names(connection)
    names = sorted(name for name in {*KNOWN, *own} if after is None or name > after)
    return [NamedModel(name, own.get(name, KNOWN.get(name)), name in own) for name in names[:limit]]


async def name_model(connection: Connection, name: str, model: str | None, *, now_ms: int) -> NamedModel:
    """From the next request on. Raises Conflict where owners have set as many names as there may be, and NotFound for a
    name that is to be forgotten and means nothing."""
    own = await read_names(connection)
    if model is None and name not in own and name not in KNOWN:
        raise _no_name(name)
    if name not in own and len(own) >= MOST_NAMES:
        raise Conflict(
            f"name: {MOST_NAMES} names are set, and there cannot be more; reset one that is not needed "
            "(DELETE /v1/model-names/{name})",
            param="name",
        )
    await set_name(connection, name, model, now_ms=now_ms)
    return NamedModel(name, model, is_own=True)


async def reset_name(connection: Connection, name: str) -> NamedModel:
    """It means again what it means from the start. Raises NotFound for a name that nobody knows."""
    if not await delete_name(connection, name) and name not in KNOWN:
        raise _no_name(name)
    return NamedModel(name, KNOWN.get(name), is_own=False)


def _no_name(name: str) -> NotFound:
    return NotFound(
        f"name: {name!r} is not the name of a model; GET /v1/model-names lists those there are", param="name"
    )
