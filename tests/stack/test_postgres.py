"""The embedded PostgreSQL: really there when it says so, gone with its parent, and able to start for root anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import asyncpg
import pytest

from app.errors import Unavailable
from app.stack import postgres as postgres_module
from app.stack.binding import UNPRIVILEGED_UID, Disguise, disguise_for_root
from app.stack.postgres import EmbeddedPostgres

_FAST = ("fsync=off",)
_DISGUISES = [disguise_for_root()] if os.geteuid() else [Disguise.OTHER_USER, disguise_for_root()]


async def _ask(url: str, question: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


@pytest.mark.parametrize("disguise", _DISGUISES, ids=lambda disguise: disguise.value)
async def test_what_is_written_is_there_after_a_restart(tmp_path: Path, disguise: Disguise) -> None:
    """Started, written to, stopped and started again, as whatever user works on this machine."""
    server = EmbeddedPostgres(tmp_path / "pg" / "data", settings=_FAST, disguise=disguise)
    server.start()
    await _ask(server.url(), "CREATE TABLE kept AS SELECT 42 AS answer")
    server.stop()
    server.start()
    assert await _ask(server.url(), "SELECT answer FROM kept") == 42
    server.stop()
    assert not server.alive()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused by PostgreSQL and needs a disguise")
async def test_the_disguise_may_change_between_starts(tmp_path: Path) -> None:
    """A data directory made inside a container starts outside of it, and the other way round."""
    data = tmp_path / "pg" / "data"
    for disguise in (Disguise.OTHER_USER, disguise_for_root(), Disguise.OTHER_USER):
        server = EmbeddedPostgres(data, settings=_FAST, disguise=disguise)
        server.start()
        assert await _ask(server.url(), "SELECT 1") == 1
        server.stop()
    assert data.stat().st_uid == UNPRIVILEGED_UID


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has directories that others cannot enter")
async def test_data_below_a_closed_directory_is_reached(tmp_path: Path) -> None:
    """A checkout in /root works although nobody else may look inside."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    server = EmbeddedPostgres(closed / "pg" / "data", settings=_FAST, disguise=Disguise.OTHER_USER)
    server.start()
    assert await _ask(server.url(), "SELECT 1") == 1
    server.stop()


async def test_strangers_need_the_password(tmp_path: Path) -> None:
    """Loopback is no excuse: a connection without the password is refused, and its file is for us alone."""
    server = EmbeddedPostgres(tmp_path / "pg" / "data", settings=_FAST)
    server.start()
    try:
        with pytest.raises(asyncpg.InvalidPasswordError):
            await _ask(server.url().replace(":", ":x", 2).replace("postgresql:x", "postgresql:"), "SELECT 1")
        assert (tmp_path / "pg" / "data.password").stat().st_mode & 0o077 == 0
    finally:
        server.stop()


@pytest.mark.parametrize("disguise", _DISGUISES, ids=lambda disguise: disguise.value)
def test_it_ends_with_its_parent_however_that_ends(tmp_path: Path, disguise: Disguise) -> None:
    """SIGKILL of the process that started it shuts PostgreSQL down, cleanly."""
    program = textwrap.dedent(f"""
        import os, signal, sys
        from pathlib import Path
        from app.stack.binding import Disguise
        from app.stack.postgres import EmbeddedPostgres
        server = EmbeddedPostgres(Path({str(tmp_path)!r}) / "pg" / "data", disguise=Disguise({disguise.value!r}))
        server.start()
        print(server.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip(), done.stderr
    pid = int(done.stdout)
    deadline = time.monotonic() + 20
    while _runs(pid):
        assert time.monotonic() < deadline, "PostgreSQL outlived its parent"
        time.sleep(0.05)
    assert "database system is shut down" in (tmp_path / "pg" / "data.log").read_text()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("dies", "times", "told"),
    [
        ("kill -9 $$", 1, ""),
        ("kill -9 $$", 2, "initdb: killed by signal 9"),
        ("exit 3", 1, "initdb: exit code 3"),
        ("echo 'no space left' >&2; exit 1", 1, "initdb: no space left"),
    ],
)
def test_what_is_killed_while_it_makes_the_database_is_begun_anew_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: str, times: int, told: str
) -> None:
    """What ends by itself says why, and is not tried again; nothing that is half made is taken for a database."""
    real, fake, log = postgres_module._binaries(), tmp_path / "bin", tmp_path / "calls"
    fake.mkdir()
    for name in ("postgres", "pg_isready"):
        (fake / name).symlink_to(real / name)
    begun = f'#!/bin/sh\necho x >>{log}\nmkdir -p "$2"\n'  # initdb -D FOLDER
    (fake / "initdb").write_text(f'{begun}[ $(wc -l <{log}) -gt {times} ] || {{ {dies}; }}\nexec {real}/initdb "$@"\n')
    (fake / "initdb").chmod(0o755)
    log.touch()
    log.chmod(0o666)
    monkeypatch.setattr(postgres_module, "_binaries", lambda: fake)
    server = EmbeddedPostgres(tmp_path / "pg" / "data", settings=_FAST)
    if not told:
        server.start()
        server.stop()
        assert (tmp_path / "pg" / "data" / "PG_VERSION").exists()
    else:
        with pytest.raises(Unavailable, match=told):
            server.start()
        assert not (tmp_path / "pg" / "data").exists()
    assert len(log.read_text().split()) == (2 if "kill" in dies else 1)
