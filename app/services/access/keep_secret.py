"""Keep secrets for jobs: set them, drop them, and open them for a run that may have them."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection

from allpass.wire.access import LONGEST_SECRET_BYTES, SHORTEST_SECRET_CHARS, secret_name_problem
from app.db.access import secrets as rows
from app.db.access.secrets import SecretRow
from app.db.connection import Connection
from app.errors import Conflict, InvalidInput, InvariantBroken, NotFound
from app.services.kit.seal import Sealer, Unsealable

MOST_SECRETS = 100
log = logging.getLogger(__name__)


async def set_secret(
    connection: Connection, sealer: Sealer, project_id: str, name: str, value: str, *, now_ms: int
) -> SecretRow:
    """Store the value, in the place of an earlier one. Runs that have the earlier one keep it until they end.

    Raises InvalidInput, which never tells the value, and Conflict when the project has too many.
    """
    check_name(name)
    _check_value(value)
    if not await rows.known_names(connection, project_id, [name]):
        count = await rows.count_secrets(connection, project_id)
        if count >= MOST_SECRETS:
            raise Conflict(f"the project has {count} secrets, and {MOST_SECRETS} is the most; delete one first")
    sealed = sealer.seal(project_id, name, value)
    await rows.set_secret(connection, project_id, name, sealed, sealer.key_id, now_ms=now_ms)
    stored = await rows.find_secret(connection, project_id, name)
    if stored is None:
        raise InvariantBroken(f"secret {name} is gone in the transaction that set it")
    return stored


async def drop_secret(connection: Connection, project_id: str, name: str) -> SecretRow:
    """Delete it, at once and whoever needs it: a value that leaked must not wait. Answers as it was.

    Runs that have it keep it until they end; jobs that need it and start later fail, and say why. Raises NotFound.
    """
    found = await rows.find_secret(connection, project_id, name)
    if found is None or not await rows.delete_secret(connection, project_id, name):
        raise NotFound(f"there is no secret {name!r} in this project")
    return found


async def check_known(connection: Connection, project_id: str, names: Collection[str]) -> None:
    """Raises InvalidInput naming the secrets that the project lacks."""
    unknown = sorted(set(names) - await rows.known_names(connection, project_id, names))
    if unknown:
        raise InvalidInput(
            f"template.secrets: this project has no secret {', '.join(unknown)}; "
            f"set it first: allpass secret set {unknown[0]}",
            param="template.secrets",
        )


async def open_secrets(
    connection: Connection, sealer: Sealer, project_id: str, names: Collection[str]
) -> dict[str, str]:
    """The values of these. One that was deleted, or cannot be opened, is absent: the run then says so and fails."""
    opened = {}
    for row in await rows.sealed_secrets(connection, project_id, names):
        try:
            opened[row.name] = sealer.open(project_id, row.name, row.sealed, row.seal_key_id)
        except Unsealable as error:
            log.error("%s", error.message)  # noqa: TRY400 - the trace tells nothing more
    return opened


def check_name(name: str) -> None:
    """Raises InvalidInput for what cannot be the name of a secret."""
    problem = secret_name_problem(name)
    if problem is not None:
        raise InvalidInput(f"name: {problem}", param="name")


def _check_value(value: str) -> None:
    """Every message here is told without the value."""
    if len(value) < SHORTEST_SECRET_CHARS:
        raise InvalidInput(
            f"value: has {len(value)} characters; one of fewer than {SHORTEST_SECRET_CHARS} cannot be told from "
            "ordinary text, so it could not be kept out of logs",
            param="value",
        )
    size_bytes = len(value.encode())
    if size_bytes > LONGEST_SECRET_BYTES:
        raise InvalidInput(f"value: has {size_bytes} bytes; {LONGEST_SECRET_BYTES} is the most", param="value")
    if re.fullmatch(r"\s*", value):
        raise InvalidInput("value: is nothing but white space", param="value")
