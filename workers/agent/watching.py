"""The rows of a job that waits to begin with a run's weights, put where the trainer looks for them
(`workers/trainer/watching.py`)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from typing import Any, Dict, Mapping, Optional

from workers.agent.api import Writer
from workers.agent.errors import AgentError
from workers.agent.files import folder_of, give_to
from workers.agent.machine import Machine
from workers.agent.preparing import fetch_bundle
from workers.agent.process import Stoppable
from workers.agent.workspace import MARK, Workspace

ORDER_NAME = "watch.json"


class RowWatch:
    """Does what was told last, in a thread of its own. What fails costs nothing but that the rows are not looked at."""

    def __init__(
        self, project_id: str, writer: Writer, machine: Machine, workspace: Workspace, gone: threading.Event
    ) -> None:
        self._project_id = project_id
        self._writer = writer
        self._machine = machine
        self._workspace = workspace
        self._gone = gone
        self._lock = threading.Lock()  # guards the next three
        self._wish: Optional[Mapping[str, Any]] = None
        self._can_begin = False
        self._is_busy = False
        self._there: Optional[str] = None  # the job whose rows are in their place; of the thread

    def tell(self, spec: Mapping[str, Any]) -> None:
        """Whose rows are to be looked at, if anybody's. Returns at once."""
        with self._lock:
            self._wish = spec.get("watch")
            self._start()

    def environ(self) -> Dict[str, str]:
        """The folder is there whether or not there are rows to look at."""
        return {}

    def begin(self, _: Stoppable) -> None:
        """The run has its folders. Only the trainer of the built-in recipe looks at rows."""
        if not (self._workspace.code / MARK).is_file():
            return
        with self._lock:
            self._can_begin = True
            self._start()

    def _start(self) -> None:
        if self._can_begin and not self._is_busy and _job(self._wish) != self._there:
            self._is_busy = True
            threading.Thread(target=self._work, name="watching", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                wish = self._wish
                if _job(wish) == self._there or self._gone.is_set():
                    self._is_busy = False
                    return
            with contextlib.suppress(OSError):
                self._take_away()
            with contextlib.suppress(AgentError, OSError):
                if wish is not None:
                    self._put(wish)
            self._there = _job(wish)

    def _put(self, wish: Mapping[str, Any]) -> None:
        """Made whole where only we can write, and then renamed: no link of the run's is followed."""
        made = self._workspace.spool / "watched"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        fetch_bundle(self._project_id, wish, self._writer, self._machine, self._workspace.spool, made, self._gone)
        order = {"job_id": wish["job_id"], "parameters": wish["parameters"]}
        (made / ORDER_NAME).write_text(json.dumps(order), encoding="utf-8")
        give_to(self._workspace.uid, made)
        with folder_of(self._workspace.watched) as folder:
            os.rename(made, wish["job_id"], dst_dir_fd=folder)

    def _take_away(self) -> None:
        if self._there is not None:
            with folder_of(self._workspace.watched) as folder:
                gone = f".{self._there}-{os.urandom(4).hex()}"
                os.rename(self._there, gone, src_dir_fd=folder, dst_dir_fd=folder)


def _job(wish: Optional[Mapping[str, Any]]) -> Optional[str]:
    return None if wish is None else str(wish["job_id"])
