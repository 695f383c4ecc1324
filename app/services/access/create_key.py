"""Make an API key. It is shown once: only its hash is stored."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

from app.db.access.keys import add_key
from app.db.connection import Connection
from app.errors import InvalidInput
from app.ports.clock import Clock, IdSource

SCOPES = ("read", "submit", "admin", "owner")
OWNER = "owner"  # of the installation: makes projects and settles limits, which no scope of a project includes


async def create_key(
    connection: Connection,
    project_id: str,
    name: str,
    scopes: Sequence[str],
    *,
    clock: Clock,
    ids: IdSource,
    expires_ms: int | None = None,
    key_id: str | None = None,
) -> str:
    """A new key `ak_<prefix>_<secret>` for the project. Raises InvalidInput for a scope that does not exist.

    With `owner` goes `admin`, which a release that does not know `owner` yet lets in.
    """
    granted = {*scopes, "admin"} if OWNER in scopes else set(scopes)
    unknown = sorted(set(scopes) - set(SCOPES))
    if unknown or not scopes:
        raise InvalidInput(f"scopes: {unknown or 'none'}; choose from {', '.join(SCOPES)}", param="scopes")
    prefix = secrets.token_hex(4)
    key = f"ak_{prefix}_{secrets.token_hex(32)}"
    await add_key(
        connection,
        key_id or ids.new("key"),
        project_id,
        name,
        prefix=f"ak_{prefix}",
        key_sha256=hash_key(key),
        scopes=tuple(sorted(granted)),
        now_ms=clock.now_ms(),
        expires_ms=expires_ms,
    )
    return key


def hash_key(key: str) -> bytes:
    """What is stored of a key. Keys carry 256 bits of chance, so one plain hash is enough."""
    return hashlib.sha256(key.encode()).digest()
