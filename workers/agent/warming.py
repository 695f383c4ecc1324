"""The agent's side of `warm.py`: the process of a run that stands by, which loads what the script will import."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Callable, Dict, List, Mapping

from workers.agent.command import Script
from workers.agent.process import Process, Standby
from workers.agent.workspace import Workspace

MOST_S = 120.0  # for loading; what takes longer goes on while the run is told to be prepared
_MOST_BYTES = 60_000  # fit into a pipe, so that writing never waits for a reader


class Warm:
    """Starts the process by `launch(argv, standby)`. It must be told to begin, or be closed: then it ends by itself."""

    def __init__(
        self,
        guard: Path,
        program: Path,
        workspace: Workspace,
        script: Script,
        launch: Callable[[List[str], Standby], Process],
    ) -> None:
        self._ready = workspace.home / "tmp" / ".loaded"
        python, *words = script.argv
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        try:
            standby = Standby(guard, reader)
            self.process = launch([python, str(program), str(self._ready), *words], standby)
        except BaseException:
            os.close(self._writer)
            raise
        finally:
            os.close(reader)

    def await_ready(self, gone: threading.Event) -> None:
        """Until all is loaded, or that is not to be expected any more."""
        until = time.monotonic() + MOST_S
        while not self._ready.exists() and self.process.is_alive() and time.monotonic() < until:
            if gone.wait(0.05):
                return

    def begin(self, environ: Mapping[str, str]) -> bool:
        """Let the script run, with these variables added; False when that cannot be."""
        order: Dict[str, Mapping[str, str]] = {"environ": environ}
        data = json.dumps(order).encode() + b"\n"
        told = False
        if len(data) <= _MOST_BYTES and self.process.is_alive():
            with contextlib.suppress(OSError):
                told = os.write(self._writer, data) == len(data)
        self.close()
        return told

    def close(self) -> None:
        """A process that was not told to begin ends."""
        writer, self._writer = self._writer, -1
        if writer >= 0:
            os.close(writer)
        with contextlib.suppress(OSError):
            self._ready.unlink()
