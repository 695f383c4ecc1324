"""Make a fresh installation usable: its first project and its first API key, shown once."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path

from app.db.access.keys import any_key_exists
from app.db.access.projects import ensure_project, project_of_owners
from app.db.engine import Database
from app.errors import InvalidInput
from app.ports.clock import Clock, IdSource
from app.services.access.create_key import create_key

FIRST_PROJECT = "default"
_ALL = ("read", "submit", "admin", "owner")


async def bootstrap(
    database: Database, client_file: Path | None, public_url: str, *, clock: Clock, ids: IdSource
) -> None:
    """On an empty installation, make project and key, and write the key to `client_file` for this host's clients.

    Without a client file nothing is made: keys are then created by whoever runs the service. On later starts the
    file's URL is brought up to date. Raises InvalidInput when the file cannot be read or written.
    """
    if client_file is None:
        return
    async with database.transaction() as connection:
        project_id = await ensure_project(connection, FIRST_PROJECT, clock=clock, ids=ids)
        known = await asyncio.to_thread(_read, client_file)
        api_key = known.get("api_key")
        if api_key is None or not await any_key_exists(connection, project_id):
            api_key = await create_key(connection, project_id, "first", _ALL, clock=clock, ids=ids)
        # Written before the commit: a key that is in the file but not in the database is replaced at the next start.
        await asyncio.to_thread(_write, client_file, {"url": public_url, "api_key": api_key})


async def make_owner_key(database: Database, *, clock: Clock, ids: IdSource) -> str:
    """A new key with every scope, in the project of the owners; while there is none, in the first one, which is made.

    For installations whose servers keep no files, and for those that have lost their last key.
    """
    async with database.transaction() as connection:
        owners = await project_of_owners(connection)
        project_id = owners or await ensure_project(connection, FIRST_PROJECT, clock=clock, ids=ids)
        return await create_key(connection, project_id, "owner", _ALL, clock=clock, ids=ids)


def _read(path: Path) -> dict[str, str]:
    try:
        kept: dict[str, str] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    except OSError as error:
        raise _unusable(path, "read", error) from error
    return kept


def _write(path: Path, content: dict[str, str]) -> None:
    """Whole or not at all; several servers may do so at once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, fresh = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(descriptor, "w") as file:
            json.dump(content, file)
        Path(fresh).replace(path)
    except OSError as error:
        raise _unusable(path, "written", error) from error


def _unusable(path: Path, how: str, error: OSError) -> InvalidInput:
    told = f"{path} cannot be {how} ({error.strerror}); name a file in a folder of the server's own"
    return InvalidInput(told, param="ALLPASS_CLIENT_FILE")
