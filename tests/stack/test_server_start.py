"""The server process says in one sentence why it cannot start, and leaves with an exit code."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from app.db.readiness import reach_database
from app.db.schema import check_schema
from app.errors import Conflict, Unavailable
from app.main import main
from app.services.access.create_key import hash_key
from app.stack.postgres import EmbeddedPostgres
from app.stack.supervisor import free_port
from tests.ports import reserved_port


def serve(database_url: str, port: int, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m app.main` to its end."""
    given = {
        "ALLPASS_DATABASE_URL": database_url,
        "ALLPASS_DATABASE_TIMEOUT_S": "2",
        "ALLPASS_PORT": str(port),
        "ALLPASS_OBJECTS_SIGNING_KEY": "k" * 40,
        "ALLPASS_SECRET_KEY": "s" * 40,
        **settings,
    }
    return subprocess.run(
        [sys.executable, "-m", "app.main"],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.mark.parametrize("migrate", ["true", "false"])
def test_a_database_that_is_down_is_named_without_its_password(migrate: str) -> None:
    """Exit code 1 and one line, no traceback: where it was looked for and which setting says so."""
    with reserved_port() as port:
        done = serve(f"postgresql://ada:hunter2@127.0.0.1:{port}/x", free_port(), ALLPASS_MIGRATE_ON_START=migrate)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: the database at 127.0.0.1:{port} does not answer within 2 s (")
    assert line.endswith("start it, or correct ALLPASS_DATABASE_URL")
    assert "hunter2" not in line


def test_a_port_in_use_is_told_before_the_database_is_touched(taken: int) -> None:
    """Exit code 1, naming address and setting; a database that is down as well is not even asked."""
    done = serve("postgresql://127.0.0.1:1/x", taken)
    assert (done.returncode, done.stderr) == (
        1,
        f"error: 127.0.0.1:{taken} is in use; stop what listens there, or set ALLPASS_PORT to another\n",
    )


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (lambda url: url.rsplit("/", 1)[0] + "/nowhere", 2, "there is no database 'nowhere'"),
        (lambda url: "postgresql://stranger:guess@" + url.split("@")[1], 2, "refuses the user 'stranger'"),
        (lambda _: "not a url", 2, "is no URL of the form postgresql://"),
        (lambda url: url.rsplit("/", 1)[0] + "/template1", 1, "ALLPASS_MIGRATE_ON_START=true"),
    ],
)
def test_a_database_that_is_not_ours_is_told_at_once(
    postgres: EmbeddedPostgres, change: Callable[[str], str], code: int, words: str
) -> None:
    """What waiting cannot mend is not waited for; each is told with what to do."""
    done = serve(change(postgres.url()), free_port(), ALLPASS_DATABASE_TIMEOUT_S="60")
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "guess" not in done.stderr


async def test_a_database_that_is_still_starting_is_waited_for(tmp_path: Path) -> None:
    """Server and database may be started together."""
    server = EmbeddedPostgres(tmp_path / "data")
    await asyncio.to_thread(server.start)
    url = server.url()
    await asyncio.to_thread(server.stop)
    try:
        with pytest.raises(Unavailable, match=r"does not answer within 0\.1 s"):
            await reach_database(url, timeout_s=0.1)
        waiting = asyncio.create_task(reach_database(url, timeout_s=60))
        await asyncio.sleep(0)
        await asyncio.to_thread(server.start)
        await waiting
    finally:
        await asyncio.to_thread(server.stop)


async def test_migrating_is_a_command_of_its_own(
    postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`migrate` brings an empty database up to date and ends with 0; a second time it finds nothing to do. Any other
    word is refused."""
    connection = await asyncpg.connect(postgres.url())
    await connection.execute("CREATE DATABASE to_migrate")
    await connection.close()
    url = postgres.url("to_migrate")
    given = {"DATABASE_URL": url, "OBJECTS_SIGNING_KEY": "k" * 40, "SECRET_KEY": "s" * 40, "DATABASE_TIMEOUT_S": "60"}
    for name, value in given.items():
        monkeypatch.setenv(f"ALLPASS_{name}", value)
    with pytest.raises(Conflict):
        await check_schema(url, timeout_s=60)
    for _ in range(2):
        assert await asyncio.to_thread(main, ["migrate"]) == 0
    await check_schema(url, timeout_s=60)
    assert main(["migarte"]) == 2
    assert "migarte" in capsys.readouterr().err


async def test_a_key_that_may_do_everything_is_made_by_a_command(
    postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where servers keep no files, or the last key is lost: `owner-key` prints one, always of the owners' project."""
    connection = await asyncpg.connect(postgres.url())
    await connection.execute("CREATE DATABASE without_keys")
    await connection.close()
    url = postgres.url("without_keys")
    given = {"DATABASE_URL": url, "OBJECTS_SIGNING_KEY": "k" * 40, "SECRET_KEY": "s" * 40, "DATABASE_TIMEOUT_S": "60"}
    for name, value in given.items():
        monkeypatch.setenv(f"ALLPASS_{name}", value)
    assert await asyncio.to_thread(main, ["owner-key"]) == 1, "there is no schema yet"
    assert "holds no tables of Allpass" in capsys.readouterr().err
    printed = []
    for words in (["migrate", "owner-key"], ["owner-key"]):
        assert await asyncio.to_thread(main, words) == 0
        printed.append(json.loads(capsys.readouterr().out))
    connection = await asyncpg.connect(url)
    rows = await connection.fetch("SELECT project_id, key_sha256, scopes FROM api_keys ORDER BY id")
    await connection.execute("UPDATE api_keys SET revoked_ms = 1")
    await connection.execute("UPDATE projects SET name = 'renamed'")
    assert [row["key_sha256"] for row in rows] == [hash_key(one["api_key"]) for one in printed]
    assert {one["url"] for one in printed} == {"http://127.0.0.1:7700"}
    assert all({"owner", "admin", "submit", "read"} <= set(row["scopes"]) for row in rows)
    assert await asyncio.to_thread(main, ["owner-key"]) == 0
    again = await connection.fetch("SELECT DISTINCT project_id FROM api_keys")
    await connection.close()
    assert [row["project_id"] for row in again] == [rows[0]["project_id"]], (
        "revoked keys still tell the owners' project"
    )
