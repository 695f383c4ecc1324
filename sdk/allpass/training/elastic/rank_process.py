"""One of the other processes of a training on several GPUs, as the first process sees it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allpass.training.session import EXIT_STOPPED

END_S = 5.0  # for one that was killed to be gone
_HELD_SIGNALS = {signal.SIGTERM, signal.SIGINT}  # which are the first process's to heed


class RankProcess:
    """It loads, and then takes part in whatever it is told to. Its errors and warnings are told line by line, with its
    rank; it says nothing else that the first one does not say as well.

    `ready`: a file that is there once it has loaded. `is_needed`: the training cannot go on as it is to without it."""

    def __init__(
        self,
        command: Sequence[str],
        task: Mapping[str, Any],
        gpu: str,
        rank: int,
        ready: Path,
        environment: Mapping[str, str],
        is_needed: bool,
    ) -> None:
        """Raises OSError where there can be no more processes."""
        self.gpu = gpu
        self.rank = rank
        self.is_needed = is_needed
        self.loads_for_s = self.leaves_for_s = 0.0
        self._ready = ready
        self._why: str | None = None
        self._last: deque[str] = deque(maxlen=1)
        held = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_SIGNALS)  # inherited, and never given up there
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        self.tell({**task, "ready": str(ready)})

    @property
    def has_loaded(self) -> bool:
        return self._ready.exists()

    def tell(self, order: Mapping[str, Any]) -> None:
        """Its end is told otherwise."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()

    def wait(self) -> int:
        """Until it is over; tells meanwhile what it says."""
        assert self._process.stderr is not None
        with self._process.stderr as pipe:
            for data in pipe:
                line = data.decode(errors="replace").rstrip()
                if line:
                    self._last.append(line)
                    write(f"rank {self.rank}: {line}")
        return self._process.wait()

    def let_go(self) -> None:
        """The end of its input is the end of its work."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def kill(self, why: str) -> None:
        """`why`: what is to be said of its end."""
        self._why = why
        self._process.kill()

    def end(self, patience_s: float) -> None:
        """It is gone after so many seconds, and at once then; but for one whose GPU does not let go of it."""
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)

    def in_words(self, code: int) -> str:
        """How it ended, with its last words."""
        if self._why is not None:
            return self._why
        if code < 0:
            return f"was killed ({signal.Signals(-code).name})"
        last = "".join(self._last)
        return f"ended with code {code} before the training did{f', {last}' if last else ''}"

    def has_failed(self, code: int) -> bool:
        """Whether it ended by itself, for a reason that it gave."""
        return self._why is None and code > 0

    def exit_code(self, code: int) -> int:
        """The job's, where it ends with this one: as a shell tells of a child; never as if the job had ended, or been
        asked to leave."""
        if self._why is not None:
            return 1
        if code < 0:
            return 128 - code
        return 1 if code in (0, EXIT_STOPPED) else code


def write(line: str) -> None:
    """At once, so that no two lines are mixed."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
