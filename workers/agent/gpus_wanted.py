"""Which of a run's GPUs its training is to use, put where the trainer looks for it while it goes on
(`allpass.training.elastic.wanted_gpus`)."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from workers.agent.files import folder_of, give_to
from workers.agent.gpus import host_index
from workers.agent.machine import Machine
from workers.agent.process import Stoppable
from workers.agent.workspace import Workspace

VARIABLE = "ALLPASS_GPUS_FILE"
FILE_NAME = "wanted.json"


class GpusWanted:
    """`shares`: the run has its process with another one, whose number of GPUs does not change."""

    def __init__(self, spec: Mapping[str, Any], machine: Machine, workspace: Workspace, *, shares: bool) -> None:
        self._machine = machine
        self._workspace = workspace
        self._can_change = not shares and spec.get("purpose", "train") == "train"
        self._lock = threading.Lock()  # guards the next two
        self._wanted = _wanted(spec)
        self._is_there: Optional[Tuple[int, ...]] = None  # in the file; None: there is no such file yet

    def tell(self, spec: Mapping[str, Any]) -> None:
        """From a server that says nothing of it, what it said before counts."""
        with self._lock:
            self._wanted = _wanted(spec) or self._wanted
            if self._is_there is not None:
                self._write()

    def environ(self) -> Dict[str, str]:
        """Code that does not look keeps the GPUs that it begins with, as does a training that cannot be told that they
        change."""
        if not self._can_change:
            return {}
        with self._lock:
            if not self._wanted:
                return {}
            try:
                self._workspace.gpus.mkdir(exist_ok=True)
            except OSError:
                return {}
            self._write()
            return {} if self._is_there is None else {VARIABLE: str(self._workspace.gpus / FILE_NAME)}

    def begin(self, process: Stoppable) -> None:
        """It looks by itself."""

    def _write(self) -> None:
        """With the lock. Made whole where only we can write, and then renamed: no link of the run's is followed. Where
        that fails it is tried again when the server says something new."""
        if self._wanted == self._is_there:
            return
        made = self._workspace.spool / FILE_NAME
        names = [str(host_index(self._machine.config, index)) for index in self._wanted]
        try:
            with contextlib.suppress(FileNotFoundError):
                made.unlink()
            made.write_text(json.dumps(names), encoding="utf-8")
            give_to(self._workspace.uid, made)
            with folder_of(self._workspace.gpus) as folder:
                os.rename(made, FILE_NAME, dst_dir_fd=folder)
            self._is_there = self._wanted
        except OSError as error:
            print(f"allpass agent: which GPUs a run is to use could not be written: {error}", file=sys.stderr)


def _wanted(spec: Mapping[str, Any]) -> Tuple[int, ...]:
    found: Sequence[int] = spec.get("use_gpus") or ()
    return tuple(found)
