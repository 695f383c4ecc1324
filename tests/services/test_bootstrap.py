"""The first start of an installation: a project, a key, and the file that clients of this host find."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from app.db.engine import Database
from app.errors import InvalidInput
from app.services.access.bootstrap import bootstrap
from app.system import RandomIds
from tests.conftest import ManualClock

URL = "http://127.0.0.1:7700"


def names(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir()]


async def found(database: Database, file: Path | None) -> None:
    """As a server of its own would: no two make the same ids."""
    clock = ManualClock()
    await bootstrap(database, file, URL, clock=clock, ids=RandomIds(clock))


async def test_the_key_is_written_for_its_owner_only(database: Database, tmp_path: Path) -> None:
    """Into a folder that may not be there yet; nothing else is left in it; a second start changes nothing."""
    file = tmp_path / "new" / "client.json"
    await found(database, file)
    known = json.loads(file.read_text())
    assert known["url"] == URL
    assert known["api_key"]
    assert file.stat().st_mode & 0o777 == 0o600
    assert names(file.parent) == ["client.json"]
    await found(database, file)
    assert json.loads(file.read_text()) == known


async def test_servers_that_start_at_once_agree_on_a_file(database: Database, tmp_path: Path) -> None:
    """Whoever writes last, the file is whole and nothing is left beside it."""
    file = tmp_path / "client.json"
    await asyncio.gather(*(found(database, file) for _ in range(4)))
    assert json.loads(file.read_text())["api_key"]
    assert names(tmp_path) == ["client.json"]


async def test_without_a_file_nothing_is_made(database: Database) -> None:
    """Keys are then made by whoever runs the service."""
    await found(database, None)


async def test_a_file_that_cannot_be_written_is_named(database: Database, tmp_path: Path) -> None:
    """Not blamed on the database."""
    (tmp_path / "taken").write_text("a file, not a folder")
    with pytest.raises(InvalidInput, match="cannot be") as caught:
        await found(database, tmp_path / "taken" / "client.json")
    assert caught.value.param == "ALLPASS_CLIENT_FILE"
