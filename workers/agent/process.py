"""One guarded process: started, signalled and awaited. `guard.py` is its parent and outlives the agent by nothing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Protocol, Sequence

_PIPE_END_S = 10.0  # after the end of a process, how long its output may still come


@dataclass(frozen=True)
class Ended:
    """How a process ended: exactly one of the first two is set. `parted`: why a run that shared it with another is to
    go on by itself. `orderly`: it was asked to save and leave, and all who could save left by themselves, whatever
    became of the one that had started them. `left`: processes of it that nothing could end. `strands`: it could not
    begin again from what lies on its disk, and its job goes on from what is stored, if anything is."""

    exit_code: Optional[int] = None
    signal: Optional[int] = None
    parted: Optional[str] = None
    orderly: bool = False
    left: Sequence[int] = ()
    strands: bool = False


class User(NamedTuple):
    """Who a process runs as, and what it may. `uid` None: the agent's own. `warden` (see `sweep.py`): set where nobody
    else is this user, so that all that runs as it ends with the process. `views`: see `views.py`."""

    uid: Optional[int] = None
    warden: Optional[int] = None
    views: Sequence[Mapping[str, Any]] = ()
    most_processes: int = 0


class Stoppable(Protocol):
    """What a run's user code runs in."""

    @property
    def pid(self) -> Optional[int]:
        """Of the guard that all of it is below; None where that is not known."""

    def terminate(self, grace_ms: int) -> None:
        """Ask it to save and leave; no later than after the grace it is gone."""

    def kill(self) -> None:
        """End it, whatever it does."""

    def wait(self) -> Ended:
        """Until it is over."""


class Standby:
    """A guard that waits for its order: started ahead of time, since a Python takes a while to start.

    It must be given to a Process or dismissed. Should the agent die, it ends by itself. `stdin`: what the process reads
    from, which the caller closes; else nothing.
    """

    def __init__(self, guard: Path, stdin: Optional[int] = None) -> None:
        self.output, self.writer = os.pipe()
        self.stdin = stdin
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(guard)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.writer,
                pass_fds=[self.writer] if stdin is None else [self.writer, stdin],
                env={"PATH": os.environ.get("PATH", os.defpath)},
                cwd="/",
                start_new_session=True,
            )
        except OSError:
            os.close(self.output)
            raise
        finally:
            os.close(self.writer)  # from now on its number, there

    def dismiss(self) -> None:
        """There is nothing to do for it."""
        self.process.communicate()
        os.close(self.output)


class Process:
    """`output` is called with each piece of stdout and stderr, merged, from a thread of its own.

    It may block: the process then waits when it writes (nothing is dropped). `standby`: a guard that is there already.
    `nice`: so much lower is its priority.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        guard: Path,
        environ: Dict[str, str],
        cwd: Path,
        user: User,
        output: Callable[[bytes], None],
        umask: int = 0o077,
        standby: Optional[Standby] = None,
        nice: int = 0,
    ) -> None:
        waiting = standby or Standby(guard)
        self._guard = waiting.process
        self._delivering = False
        self._reader = threading.Thread(target=self._pump, args=(waiting.output, output), name="output", daemon=True)
        self._reader.start()
        order = {
            "argv": list(argv),
            "environ": environ,
            "cwd": str(cwd),
            **user._asdict(),
            "output_fd": waiting.writer,
            "input_fd": waiting.stdin,
            "umask": umask,
            "nice": nice,
        }
        self._command_lock = threading.Lock()  # one command at a time, none into a closed pipe
        self._command(json.dumps(order).encode())

    @property
    def pid(self) -> Optional[int]:
        return self._guard.pid

    def terminate(self, grace_ms: int) -> None:
        """Ask it and what it started to save and leave (`asking.py`); SIGKILL to all when the grace is over."""
        self._command(b"T%d" % grace_ms)

    def kill(self) -> None:
        """SIGKILL to the process and all it started."""
        self._command(b"K")

    def hasten(self) -> None:
        """Its priority is the usual one from now on, where we have the right."""
        self._command(b"N")

    def is_alive(self) -> bool:
        return self._guard.poll() is None

    def wait(self) -> Ended:
        """Until the process and all it started are gone and its output is read."""
        if self._guard.stdout is None or self._guard.stdin is None:
            raise RuntimeError("the guard has no pipes")
        told = self._guard.stdout.read()
        self._guard.wait()
        with self._command_lock, contextlib.suppress(OSError):
            self._guard.stdin.close()
        self._guard.stdout.close()
        self._await_output()
        # A guard that says nothing was killed itself, and the kernel ended the process with it.
        return Ended(**json.loads(told)) if told else Ended(signal=9)

    def _await_output(self) -> None:
        """Until the pipe's end. Whoever holds it open and says nothing is not waited for (where the guard cannot find
        all descendants), but a receiver that makes us wait is: nothing is dropped."""
        quiet_since = time.monotonic()
        while self._reader.is_alive() and time.monotonic() < quiet_since + _PIPE_END_S:
            self._reader.join(0.05)
            if self._delivering:
                quiet_since = time.monotonic()

    def _pump(self, reader: int, output: Callable[[bytes], None]) -> None:
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while True:
                piece = pipe.read(65536)
                if not piece:
                    return
                self._delivering = True
                output(piece)
                self._delivering = False

    def _command(self, line: bytes) -> None:
        stdin = self._guard.stdin
        with self._command_lock:
            if stdin is not None and not stdin.closed:
                with contextlib.suppress(OSError):  # it has ended
                    stdin.write(line + b"\n")
                    stdin.flush()
