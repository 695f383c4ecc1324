"""vLLM's own server as a process beside this one: begun, asked whether it is up, and ended.

It listens on loopback, with a key of its own: other users of a machine may share that. What it has printed is kept for
the moment in which it ends.
"""

from __future__ import annotations

import collections
import errno
import http.client
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

COMMAND = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
START_S = 1800.0  # weights may have to be fetched, and kernels compiled
_LOOK_S = 0.2
_ANSWER_S = 60.0
_UP_S = 2.0  # of a program that may be another's, or still compile: it is asked again
_LEAVE_S = 10.0
_KEPT_LINES = 60
_LONGEST_LINE = 500
_PORTS = 5
_TAKEN = os.strerror(errno.EADDRINUSE)
_SHORTER = re.compile(r"estimated maximum model length is (\d+)")
_REASONS = re.compile(r"[\w.]*(?:Error|Exception|OutOfMemory)\b.*")


class EngineEnded(RuntimeError):
    """vLLM is not there: it did not start, or has ended."""


class EngineStopped(Exception):
    """Whoever waited for vLLM to start is to leave."""


class VllmServer:
    """`arguments`: of its command line, beside where it listens. It must be closed."""

    def __init__(
        self,
        base: str,
        arguments: Sequence[str],
        *,
        command: Sequence[str] = COMMAND,
        start_s: float = START_S,
        stops: Callable[[], bool] = lambda: False,
    ) -> None:
        self.base = base
        self._arguments = list(arguments)
        self._command = list(command)
        self._start_s = start_s
        self._stops = stops
        self._key = secrets.token_hex(16)
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self._lines: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self.most_tokens = 0  # of a prompt and its answer

    def start(self) -> None:
        """Returns when it answers. Where the GPU has no room for the longest text that the model takes, it is begun
        once more for shorter ones. Raises EngineEnded and EngineStopped."""
        try:
            self._start(self._arguments)
        except EngineEnded:
            shorter = [found[1] for line in self._lines if (found := _SHORTER.search(line))]
            if not shorter:
                raise
            print(f"serving: vLLM has room for texts of {shorter[-1]} tokens here", flush=True)
            self._arguments += ["--max-model-len", shorter[-1]]
            self._start(self._arguments)

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def ended_within(self, wait_s: float) -> bool:
        try:
            if self._process is not None:
                self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def why(self) -> str:
        """How it ended, with the line that says most."""
        if self.has_ended:
            self._reader.join(_LEAVE_S)
        code = None if self._process is None else self._process.poll()
        reasons = [found[0] for line in self._lines if (found := _REASONS.search(line))]
        last = reasons[-1:] or list(self._lines)[-1:]
        killed = " (killed, as a machine does that has run out of memory)" if code == -9 else ""
        return f"vLLM ended with code {code}{killed}" + (f": {last[0]}" if last else "")

    def connection(self, timeout_s: float = _ANSWER_S) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=timeout_s)

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = _ANSWER_S
    ) -> tuple[int, Any]:
        """The status, and what was said: JSON, or text. Raises OSError and HTTPException."""
        connection = self.connection(timeout_s)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), self.headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        try:
            return answer.status, json.loads(content)
        except ValueError:
            return answer.status, content.decode("utf-8", "replace")

    @property
    def headers(self) -> dict[str, str]:
        return {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}

    def close(self) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            if not self.ended_within(_LEAVE_S):
                process.kill()
                process.wait()
        self._reader.join(_LEAVE_S)

    def _start(self, arguments: Sequence[str], tries_left: int = _PORTS - 1) -> None:
        """On another port where somebody was faster to listen on the one that had been free."""
        try:
            self._start_on(_free_port(), arguments)
        except EngineEnded:
            if not tries_left or not any(_TAKEN in line for line in self._lines):
                raise
            self._start(arguments, tries_left - 1)

    def _start_on(self, port: int, arguments: Sequence[str]) -> None:
        self._port = port
        self._lines.clear()
        where = [
            "--host",
            "127.0.0.1",
            "--port",
            str(self._port),
            "--model",
            self.base,
            "--served-model-name",
            self.base,
        ]
        environ = {
            **os.environ,
            "VLLM_API_KEY": self._key,
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_NO_USAGE_STATS": "1",
        }
        self._process = process = subprocess.Popen(  # noqa: S603 - our own
            [*self._command, *where, *arguments],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # a request to stop is for the program that answers: it has texts to finish
        )
        self._reader = threading.Thread(target=self._keep_lines, args=(process,), daemon=True)
        self._reader.start()
        until_s = time.monotonic() + self._start_s
        while not self._is_up():
            if process.poll() is not None:
                self._reader.join(_LEAVE_S)
                raise EngineEnded(self.why())
            if self._stops():
                self.close()
                raise EngineStopped
            if time.monotonic() > until_s:
                self.close()
                raise EngineEnded(f"vLLM did not answer within {self._start_s:g} s of its start")
            self.ended_within(_LOOK_S)

    def _is_up(self) -> bool:
        """Whether it is ours that answers, with our model."""
        try:
            status, told = self.ask("GET", "/v1/models", timeout_s=_UP_S)
            models = told["data"] if status == 200 else []
            (model,) = (one for one in models if one["id"] == self.base)
            self.most_tokens = int(model["max_model_len"])
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
            return False
        return True

    def _keep_lines(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if line.strip():
                    self._lines.append(line.rstrip()[:_LONGEST_LINE])


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
