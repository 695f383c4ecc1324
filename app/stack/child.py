"""One supervised child process: started bound to our life, checked by asking it, restarted when it dies alone."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.errors import Unavailable
from app.stack.binding import die_with_parent
from app.stack.logs import last_line, open_log, tail_of

_POLL_S = 0.03


class Child:
    """A program that answers 200 on `http://127.0.0.1:<port><health_path>` when it is ready.

    Start it from the main thread (see `die_with_parent`). Its output goes to `log_file`. It has a session of its own:
    the Ctrl-C of a terminal is for the stack, which ends its children when they are not needed any more.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log_file: Path,
        port: int,
        health_path: str = "/healthz",
    ) -> None:
        self.name = name
        self.restarts = 0
        self._command = list(command)
        self._environment = dict(environment)
        self._log_file = log_file
        self.port = port
        self._health_path = health_path
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        with open_log(self._log_file) as log:
            self._process = subprocess.Popen(  # noqa: S603 (our own program, our own arguments)
                self._command,
                env={**_inherited(), **self._environment},
                preexec_fn=die_with_parent(signal.SIGTERM),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def how_it_ended(self) -> str:
        """In words, with its own last one."""
        return f"{ending_of(self._process)}, its last words: {last_line(self._log_file)}"

    def wait_until_ready(self, within_s: float) -> None:
        """Return when it answers. Raises Unavailable with the end of its log when it does not."""
        if not self.becomes_ready(within_s):
            raise Unavailable(f"{self.name} was not ready within {within_s:.0f} s:\n{self.log_tail()}")

    def becomes_ready(self, within_s: float) -> bool:
        """Whether it answers by then. Raises Unavailable with the end of its log when it has ended."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if not self.alive():
                raise Unavailable(f"{self.name} ended while it started:\n{self.log_tail()}")
            if self.answers():
                return True
            time.sleep(_POLL_S)
        return False

    def answers(self) -> bool:
        """Whether its health page says 200 now."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", self._health_path)
            return connection.getresponse().status == 200
        return False

    def give(self, environment: Mapping[str, str | None]) -> dict[str, str | None]:
        """Variables for its next start, over those that it has; None: without this one. What it had instead."""
        had = {name: self._environment.get(name) for name in environment}
        self._environment |= {name: value for name, value in environment.items() if value is not None}
        for name in [name for name, value in environment.items() if value is None]:
            self._environment.pop(name, None)
        return had

    def restart(self) -> None:
        """Start it again; whether it becomes ready is for later."""
        self.restarts += 1
        self.start()

    def kill(self) -> None:
        """SIGKILL, as a crash would be; returns when it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, within_s: float = 10.0) -> None:
        """SIGTERM, then SIGKILL; stopping twice is harmless."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(within_s)

    def log_tail(self, size_bytes: int = 2000) -> str:
        return tail_of(self._log_file, size_bytes)


def ending_of(process: subprocess.Popen[bytes] | None) -> str:
    """How a process ended, in words."""
    code = None if process is None else process.poll()
    return "not started" if code is None else ending_in_words(code)


def ending_in_words(code: int) -> str:
    """Of a process that ended with this code; below 0: by a signal."""
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def _inherited() -> dict[str, str]:
    """Our environment without Allpass settings: a child gets exactly the settings it is given."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ALLPASS_")}
