"""The other end of a request for text: a server takes it, and tells the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from allpass.recipe.adapters import CONFIG_NAME, WEIGHTS_NAME
from app.db.connection import Connection
from app.db.doors.completions import (
    DONE,
    FAILED,
    TAKEN,
    Completion,
    add_piece,
    change_completion,
    find_completion,
    pieces_after,
    set_waiting,
    take_completion,
    taken_by_others,
)
from app.db.doors.servers import ModelServer, set_instance
from app.errors import Conflict
from app.services.doors.advance_tuning import adapter_files

MOST_AT_ONCE = 256  # requests that one process answers
LOST = "the machine that was writing the answer was lost; ask again"


@dataclass(frozen=True, slots=True)
class ToldAnswer:
    """What a server says of an answer: more text (`position`: of its pieces), how far it is, or why it failed."""

    text: str = ""
    position: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    is_request_wrong: bool = False


async def begin(connection: Connection, server: ModelServer, instance: str) -> None:
    """This process asks from now on. What an earlier one had taken and said nothing of is waiting again; of what it
    had said something, the rest is lost."""
    await set_instance(connection, server.id, instance)
    for one in await taken_by_others(connection, server.id, instance):
        if await pieces_after(connection, one.id, 0):
            await change_completion(connection, one.id, {"state": FAILED, "error": {"message": LOST}})
        else:
            await set_waiting(connection, one.id)


def check_instance(server: ModelServer, instance: str) -> None:
    """Raises Conflict for a process in whose place there is another one."""
    if server.instance != instance:
        raise Conflict("another process serves this model now")


async def take(
    connection: Connection, server: ModelServer, instance: str, holding: Sequence[str] = ()
) -> tuple[Completion, dict[str, str]] | None:
    """The next request, with the hashes of the adapter's files by name. An adapter that is gone is told to who asks."""
    while (found := await take_completion(connection, server.id, instance, holding)) is not None:
        if found.adapter_of is None:
            return found, {}
        files = await adapter_files(connection, server.project_id, found.adapter_of)
        chosen = {name: files[name] for name in (CONFIG_NAME, WEIGHTS_NAME) if name in files}
        if len(chosen) == 2:
            return found, chosen
        message = "model: its adapter is not there: it was trained in full, or its files were deleted"
        await change_completion(
            connection, found.id, {"state": FAILED, "error": {"message": message, "is_request_wrong": True}}
        )
    return None


async def tell(
    connection: Connection, server: ModelServer, instance: str, completion_id: str, told: ToldAnswer
) -> bool:
    """Whether anybody still waits for the answer. What is told twice counts once: of an answer that has ended nothing
    is taken any more."""
    found = await find_completion(connection, completion_id, lock=True)
    if found is None or found.server_id != server.id or found.state != TAKEN or found.instance != instance:
        return False
    if told.text:
        await add_piece(connection, completion_id, told.position, told.text)
    changes: dict[str, Any] = {}
    if told.completion_tokens is not None:
        changes |= {"prompt_tokens": told.prompt_tokens, "completion_tokens": told.completion_tokens}
    if told.finish_reason is not None:
        changes |= {"state": DONE, "finish_reason": told.finish_reason}
    if told.error is not None:
        error = {"message": told.error, "is_request_wrong": told.is_request_wrong}
        changes |= {"state": FAILED, "error": error}
    await change_completion(connection, completion_id, changes or {"state": TAKEN})
    return True
