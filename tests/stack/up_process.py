"""`allpass up` as a process of the test, and what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self, TypeVar

from allpass.client import Client
from tests.ports import reserved_port

ALLPASS = str(Path(sys.executable).parent / "allpass")
# What takes minutes in production takes seconds here.
QUICK = {
    "ALLPASS_TICK_S": "1",
    "ALLPASS_POLL_S": "0.25",
    "ALLPASS_LEADER_LEASE_S": "3",
    "ALLPASS_SWEEP_S": "1",
    "ALLPASS_HEARTBEAT_CHECK_S": "0.5",
    "ALLPASS_AGENT_POLL_S": "2",
}
Found = TypeVar("Found")


def until(what: str, look: Callable[[], Found | None], within_s: float = 60) -> Found:
    """The first truthy thing that `look` finds."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {within_s:.0f} s for {what}"
        time.sleep(0.05)
    return found


class Up:
    """One data directory, on which `allpass up` is started any number of times."""

    def __init__(self, data_dir: Path, *, cwd: Path | None = None, options: tuple[str, ...] = (), **settings: str):
        self.data_dir = data_dir
        self._held = ExitStack()
        self._port = self._held.enter_context(reserved_port())  # the same at each start, as a user's
        self._cwd = cwd
        self._options = options
        self._settings = {**QUICK, **settings}
        self.config = data_dir.with_suffix(".config")  # not that of whoever runs the tests
        self._said_file = data_dir.with_suffix(".said")
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._held.close()
        until("the end of every process", lambda: not processes_of(self.data_dir))

    def begin(self) -> subprocess.Popen[bytes]:
        """Start it and return at once."""
        command = [ALLPASS, "up", "--port", str(self._port), "--data-dir", str(self.data_dir), "--speed", "0"]
        with self._said_file.open("ab") as said:
            self.process = subprocess.Popen(
                [*command, *self._options],
                env={**os.environ, "XDG_CONFIG_HOME": str(self.config), **self._settings},
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
        return self.process

    def start(self) -> Client:
        """Start it; a client once it serves."""
        self.begin()
        return until("the start of the stack", self.client)

    def client(self) -> Client | None:
        assert self.process is not None
        assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.said()}"
        file = self.data_dir / "client.json"
        if not file.exists():
            return None
        connection = json.loads(file.read_text())
        client = Client(connection["url"], connection["api_key"], retries=0)
        try:
            serves = client.health(ready=True).status == "ok"
        except Exception:
            serves = False
        if not serves:
            client.close()
            return None
        self._held.callback(client.close)
        return client

    def stop(self, *signals: signal.Signals, within_s: float = 60) -> int:
        """Send the signals, half a second apart, and wait for the end; the exit code."""
        assert self.process is not None
        for index, number in enumerate(signals or (signal.SIGTERM,)):
            if index:
                self.waits(0.5)
            self.process.send_signal(number)
        return self.process.wait(within_s)

    def waits(self, seconds: float) -> None:
        """It must not end by itself meanwhile."""
        assert self.process is not None
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        raise AssertionError(f"it ended with {code}: {self.said()}")

    def said(self) -> str:
        return self._said_file.read_text(errors="replace")


def processes_of(data_dir: Path) -> list[int]:
    """Every process with this data directory in its command line or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(data_dir).encode() in text:
                found.append(int(entry.name))
    return found
