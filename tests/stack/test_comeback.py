"""A part of the stack that ends by itself comes back, whatever keeps it from that for a while."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest

from app.stack import comeback, postgres
from app.stack.child import Child
from app.stack.comeback import PAUSES_S, SETTLED_S, Comeback
from app.stack.logs import open_log, tail_of
from app.stack.postgres import EmbeddedPostgres
from app.stack.watching import Watch
from tests.ports import reserved_port

_WITHIN_S = 40.0


class Kept:
    """A PostgreSQL that is watched, and what is told of it."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.told: list[str] = []
        self.data = folder / "pg" / "data"
        self.postgres = EmbeddedPostgres(self.data, settings=("fsync=off", *settings), tell=self.told.append)
        self.watch = Watch(self.told.append)
        self.postgres.start()
        self.ask("CREATE TABLE kept AS SELECT 42 AS answer")

    def ask(self, question: str) -> object:
        async def fetch() -> object:
            connection = await asyncpg.connect(self.postgres.url(), timeout=10)
            try:
                return await connection.fetchval(question)
            finally:
                await connection.close()

        return asyncio.run(fetch())

    def kill(self) -> None:
        os.kill(self.postgres.pid, signal.SIGKILL)
        deadline = time.monotonic() + _WITHIN_S
        while self.postgres.alive():
            assert time.monotonic() < deadline

    def look(self) -> bool:
        return self.watch.look_at(self.postgres) and self.postgres.serves()

    def look_until(self, what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _WITHIN_S
        while not holds():
            self.look()
            assert time.monotonic() < deadline, f"waited for {what}: {self.told}"
            time.sleep(0.02)

    def is_told(self, words: str) -> bool:
        return any(words in line for line in self.told)

    def comes_back(self) -> None:
        self.look_until("PostgreSQL to serve", self.look)
        assert self.ask("SELECT answer FROM kept") == 42


@contextmanager
def kept(folder: Path, *settings: str) -> Iterator[Kept]:
    one = Kept(folder, *settings)
    try:
        yield one
    finally:
        one.postgres.stop()


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as reserved:
        yield reserved


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comeback, "PAUSES_S", (0.0, 0.1, 0.3))


def test_pauses_grow_to_a_bound_and_begin_anew_after_a_while_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash loop is tried, and told, ever less often; who has lived for a while is started again at once."""
    monkeypatch.setattr(comeback, "PAUSES_S", PAUSES_S)
    now = 0.0
    one = Comeback(lambda: now)
    tries: list[float] = []
    for _ in range(10_000):  # looks at a part that never lives, five a second
        one.ended()
        if one.is_due():
            tries.append(now)
            one.tried()
        now += 0.2
    gaps = [round(later - earlier) for earlier, later in itertools.pairwise(tries)]
    assert gaps[:6] == [round(pause) for pause in PAUSES_S[1:]]
    assert set(gaps[6:]) == {round(PAUSES_S[-1])}
    one.lives()
    now += SETTLED_S
    one.lives()
    assert one.ended() == 0.0


def test_a_postgresql_that_is_killed_under_load_comes_back_with_what_was_committed(tmp_path: Path) -> None:
    """SIGKILL while others write: they lose their connections, no committed row is lost, and it is told once."""
    with kept(tmp_path) as one:
        url, committed, lost = one.postgres.url(), list[int](), list[Exception]()

        async def load() -> None:
            connection = await asyncpg.connect(url)
            await connection.execute("CREATE TABLE many (n int)")
            for number in range(1_000_000):
                await connection.execute("INSERT INTO many SELECT generate_series($1::int, $1 + 99)", number * 100)
                committed.append(number)

        def write() -> None:
            try:
                asyncio.run(load())
            except Exception as error:
                lost.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        one.look_until("some rows", lambda: len(committed) > 20)
        one.kill()
        writer.join(_WITHIN_S)
        assert len(lost) == 1  # the connection
        one.comes_back()
        assert one.ask("SELECT count(*) FROM many") in {100 * len(committed), 100 * (len(committed) + 1)}
        assert one.is_told("killed by signal 9")


def test_data_that_are_moved_away_are_waited_for_and_never_made_anew(tmp_path: Path) -> None:
    """An empty database in their place would be the end of all that was kept."""
    with kept(tmp_path) as one:
        elsewhere = one.data.with_name("elsewhere")
        one.kill()
        one.data.rename(elsewhere)
        one.look_until("word of the missing data", lambda: one.is_told("put them back"))
        assert not one.data.exists()
        elsewhere.rename(one.data)
        one.comes_back()


def test_a_port_that_somebody_else_took_is_waited_for(tmp_path: Path) -> None:
    """Clients know it by that port: another one would be of no use."""
    with kept(tmp_path) as one, socket.socket() as thief:
        port = int(one.postgres.url().rsplit(":", 1)[1].split("/")[0])
        one.kill()
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one_try = time.monotonic() + _WITHIN_S
        while True:
            try:
                thief.bind(("127.0.0.1", port))
                break
            except OSError:
                assert time.monotonic() < one_try
        thief.listen()
        one.look_until("two tries", lambda: sum("exit code 1" in line for line in one.told) >= 2)
        thief.close()
        one.comes_back()


def test_a_program_that_cannot_be_run_for_a_while_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while packages are being installed anew."""
    with kept(tmp_path) as one:
        binaries = postgres._binaries()
        broken = tmp_path / "bin"
        broken.mkdir()
        (broken / "postgres").write_bytes((binaries / "postgres").read_bytes()[:100])
        one.kill()
        monkeypatch.setattr(postgres, "_binaries", lambda: broken)
        one.look_until("word of it", lambda: one.is_told("cannot be started"))
        assert one.postgres._answer() is postgres.PgReadiness.SILENT
        monkeypatch.setattr(postgres, "_binaries", lambda: binaries)
        one.comes_back()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
def test_a_full_disk_is_outlived(tmp_path: Path) -> None:
    """PostgreSQL ends when it can write no more. As soon as there is room again it serves, with all it had."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", str(disk)], check=True)
    try:
        with kept(disk, "max_wal_size=32MB") as one:
            with (disk / "ballast").open("wb") as ballast, pytest.raises(OSError, match="No space left"):
                while True:
                    ballast.write(b"\0" * 2**20)
                    ballast.flush()
            with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
                one.ask("CREATE TABLE too_much AS SELECT sha512(n::text::bytea) FROM generate_series(1, 600000) n")
            one.kill()
            for _ in range(20):  # it may come up or not: it is looked at all the same, and nothing is raised
                one.look()
                time.sleep(0.02)
            (disk / "ballast").unlink()
            one.comes_back()
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize("again", [False, True], ids=["first start", "start after a crash"])
def test_a_long_recovery_is_waited_for_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool) -> None:
    """It says that it is starting up, for far longer than a PostgreSQL that says nothing would be waited for."""
    monkeypatch.setattr(postgres, "_TOLD_AFTER_S", tuple(0.2 * number for number in range(1, 500)))
    with kept(tmp_path, "hot_standby=off") as one:
        (one.data / "standby.signal").touch()  # recovers until it is told that this is enough

        def recovers() -> bool:
            """It has said so itself: from then on it can be told that this is enough."""
            return one.is_told("recovers what was not yet written")

        def enough() -> None:
            (one.data / "promote").touch()
            os.kill(one.postgres.pid, signal.SIGUSR1)

        def enough_later() -> None:
            deadline = time.monotonic() + _WITHIN_S
            while not recovers():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            monkeypatch.setattr(postgres, "_SILENT_AT_MOST_S", 3.0)
            time.sleep(5.0)  # not to wait for anything: so long it recovers
            enough()

        if again:
            one.kill()
            one.look_until("word of the recovery", recovers)
            until = time.monotonic() + 2
            one.look_until("two seconds of recovery", lambda: time.monotonic() > until)
            assert one.postgres.alive() and not one.look()
            enough()
            one.look_until("the end of the recovery", one.look)
        else:
            one.postgres.stop()
            later = threading.Thread(target=enough_later)
            later.start()
            one.postgres.start()
            later.join()
        assert one.ask("SELECT answer FROM kept") == 42
        assert recovers()
        assert one.is_told("serves again after")


def test_an_interrupted_first_start_leaves_nothing_that_looks_like_a_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle of it: the next start makes the database."""
    server = EmbeddedPostgres(tmp_path / "pg" / "data", settings=("fsync=off",))

    def interrupted(*_arguments: object, **_options: object) -> None:
        draft = tmp_path / "pg" / "data.new"
        (draft / "PG_VERSION").write_text("17")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(subprocess, "run", interrupted)
        server.start()
    server.start()
    assert server.serves()
    server.stop()


def test_a_child_that_cannot_be_started_is_tried_again_and_told_in_one_line(tmp_path: Path, port: int) -> None:
    """Whatever it is that fails: here its program is gone for a while."""
    program = tmp_path / "program"
    told: list[str] = []
    program.symlink_to(sys.executable)
    command = [str(program), "-P", "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    child = Child("objects", command, environment={}, log_file=tmp_path / "log", port=port, health_path="/")
    watch = Watch(told.append)
    child.start()
    try:
        child.wait_until_ready(_WITHIN_S)
        program.rename(tmp_path / "away")
        child.kill()
        deadline = time.monotonic() + _WITHIN_S
        while len(told) < 3:
            watch.look_at(child)
            assert time.monotonic() < deadline
        (tmp_path / "away").rename(program)
        while not watch.look_at(child):
            assert time.monotonic() < deadline
        child.wait_until_ready(_WITHIN_S)
        assert "killed by signal 9" in told[0]
        assert "cannot be started" in told[1]
        assert all("\n" not in line for line in told)
    finally:
        child.stop()


def test_the_log_of_a_crash_loop_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has grown too large is set aside, and only one of these is kept."""
    monkeypatch.setattr("app.stack.logs.MOST_BYTES", 1000)
    path = tmp_path / "server.log"
    for number in range(100):
        with open_log(path) as log:
            log.write(b"%03d" % number + b"x" * 97)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 2 * 1100
    assert sorted(file.name for file in tmp_path.iterdir()) == ["server.log", "server.log.1"]
    assert tail_of(path, 100).startswith("099")
