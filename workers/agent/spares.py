"""A process that is kept warm between jobs of the built-in recipe: the trainer's libraries and the base weights of the
last job's model are loaded, so that the next job on the same model needs only its rows and its adapter.

It runs as a user of its own, with nothing of any job in its environment. It serves one job, of the same project, with
that job's own folders, environment and log; the job runs as that user. There is one at most. It ends when it is not
used for a while, and when any run begins that it is not for: memory belongs to those who run.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

from workers.agent.machine import Machine
from workers.agent.process import Process, Standby, User
from workers.agent.workspace import Workspace, bare_environ

IDLE_S = 600.0
SETTLE_S = 1.0  # a machine that is given back when its job ends is gone by then
LEAST_FREE_BYTES = 2 * 1024**3
_MOST_ORDER_BYTES = 60_000  # fit into a pipe, so that writing never waits for a reader
_DECIDING = ("model", "task", "method", "precision")


class SpareKind(NamedTuple):
    """What a spare is good for: jobs of this project, in this environment, that begin with these weights."""

    project_id: str
    environment_sha256: str
    weights: str

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "Optional[SpareKind]":
        """None for a job that no spare is for: one with secrets or variables, which libraries may read when they are
        loaded."""
        parameters = spec["parameters"]
        if (
            spec.get("secrets")
            or spec["template"].get("env")
            or not isinstance(parameters, dict)
            or not isinstance(parameters.get("model"), str)
        ):
            return None
        weights = json.dumps([parameters.get(name) for name in _DECIDING])
        return cls(spec["project_id"], spec["environment_sha256"], weights)


class Spare:
    """Loads, then waits for its order. It must be closed, also after the run that it became."""

    def __init__(
        self, kind: SpareKind, python: str, workspace: Workspace, argv: List[str], guard: Path, user: User, ahead: str
    ) -> None:
        self.kind = kind
        self.python = python
        self.workspace = workspace
        self._output: Callable[[bytes], None] = lambda _: None
        self._has_begun = False
        self._is_closed = False
        workspace.create({"parameters": {}, "template": {}})
        workspace.hand_over()
        environ = {
            **bare_environ(workspace),
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(workspace.root / "lib"),
            "ALLPASS_AHEAD": ahead,
        }
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        try:
            self.process = Process(
                argv,
                guard=guard,
                environ=environ,
                cwd=workspace.code,
                user=user,
                output=self._pass_on,
                umask=0o077,
                standby=Standby(guard, reader),
            )
        except BaseException:
            os.close(self._writer)
            raise
        finally:
            os.close(reader)

    def begin(self, argv: List[str], environ: Mapping[str, str], cwd: Path, output: Callable[[bytes], None]) -> bool:
        """Become this run; False when that cannot be. Should it still be loading, it begins when it is through."""
        order: Dict[str, Any] = {"environ": dict(environ), "cwd": str(cwd), "argv": argv[1:]}
        data = json.dumps(order).encode() + b"\n"
        told = False
        if argv[0] == self.python and len(data) <= _MOST_ORDER_BYTES and self.process.is_alive():
            self._output = output
            with contextlib.suppress(OSError):
                told = os.write(self._writer, data) == len(data)
        self._has_begun = told
        self._close_writer()
        return told

    def close(self) -> None:
        """End it, unless it is a run, which ends by itself. What it had is removed. Calling it twice is harmless."""
        self._close_writer()
        if not self._has_begun and not self._is_closed:
            self.process.kill()
            self.process.wait()
        self._is_closed = True
        self.workspace.remove()

    def _pass_on(self, data: bytes) -> None:
        self._output(data)

    def _close_writer(self) -> None:
        writer, self._writer = self._writer, -1
        if writer >= 0:
            os.close(writer)


class Spares:
    """Thread-safe. At most one at a time."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._lock = threading.Lock()  # guards all below
        self._spare: Optional[Spare] = None
        self._runs = 0
        self._count = 0
        self._last: Optional[threading.Timer] = None
        self._closed = threading.Event()

    def take(self, wish: Mapping[str, Any]) -> Optional[Spare]:
        """A run begins, and `ended` will be told of it. The spare, if it is for such a run; if not, it ends."""
        kind = SpareKind.of(wish["spec"]) if wish["want"] == "run" else None  # who stands by loads for itself
        with self._lock:
            self._runs += 1
        if wish.get("companion_of") is not None:  # it is in another one's process
            return None
        spare = self._remove()
        if spare is not None and spare.kind != kind:
            self._end(spare)
            return None
        return spare

    def ended(self, spare: Optional[Spare]) -> None:
        """A run is over; `spare` is what it was given. Its user is the run's to give back."""
        with self._lock:
            self._runs -= 1
        if spare is not None:
            spare.close()

    def keep(self, spec: Mapping[str, Any], python: str) -> None:
        """A job of the recipe ended well on this machine: have a process stand by for the next one like it, soon, if
        there is room. Returns at once."""
        kind = SpareKind.of(spec)
        if kind is None or not self._machine.config.keeps_spares:
            return

        def keep() -> None:
            if not self._closed.wait(SETTLE_S):
                self._start(kind, python, spec["parameters"])

        threading.Thread(target=keep, name="spare", daemon=True).start()

    def drop(self) -> None:
        """Nobody needs one now."""
        spare = self._remove()
        if spare is not None:
            self._end(spare)

    def close(self) -> None:
        """There will be none any more."""
        self._closed.set()
        self.drop()

    def _end(self, spare: Spare) -> None:
        """In a thread of its own: whoever begins a run waits for nothing."""

        def end() -> None:
            spare.close()
            self._machine.users.give_back(spare.workspace.uid)

        threading.Thread(target=end, name="spare-end", daemon=True).start()

    def _remove(self) -> Optional[Spare]:
        with self._lock:
            spare, self._spare = self._spare, None
            if self._last is not None:
                self._last.cancel()
                self._last = None
        return spare

    def _start(self, kind: SpareKind, python: str, parameters: Mapping[str, Any]) -> None:
        """Unless somebody has begun to use this machine, or there is no room."""
        if free_bytes() < LEAST_FREE_BYTES + 3 * _folder_bytes(parameters["model"]):
            return
        with self._lock:
            if self._runs or self._spare is not None or self._closed.is_set():
                return
            self._count += 1
            machine = self._machine
            user = machine.users.user(machine.users.take())
            workspace = Workspace(machine.config.root, f"spare-{os.getpid()}-{self._count}", user.uid)
            argv = [python, str(machine.warm), str(workspace.home / "tmp" / ".loaded")]
            self._spare = Spare(kind, python, workspace, argv, machine.guard, user, json.dumps(parameters))
            self._last = threading.Timer(IDLE_S, self.drop)
            self._last.daemon = True
            self._last.start()


def free_bytes() -> int:
    """Memory that could be had without swapping; nothing where the system does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def _folder_bytes(name: str) -> int:
    """Of a model in a folder; one that is named by the hub is not loaded ahead."""
    with contextlib.suppress(OSError):
        return sum(path.stat().st_size for path in Path(name).iterdir())
    return 0
