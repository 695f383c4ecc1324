"""What cannot be kept of a run: told to the job's owner, in the log and by the server, as soon as it is known."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Callable

from workers.agent.api import Api, Writer
from workers.agent.errors import AgentError, Refused
from workers.agent.patience import patiently

MOST_CHARS = 2000
_NAME_CHARS = 200
_REASONS = {
    errno.ENOENT: "was removed while it was read: keep a checkpoint until the next one is announced",
    errno.EACCES: "cannot be read: give its owner the right to read it",
    errno.EPERM: "cannot be read: give its owner the right to read it",
    errno.ENAMETOOLONG: "has a path that is too long for this machine: use shorter names",
    errno.ELOOP: "is a link that leads to itself: leave it out",
    errno.ENXIO: "is a socket or a device: only regular files can be stored",
}


class Refusals:
    """Of one run. A server of an older release hears nothing of it; the log has it all the same."""

    def __init__(self, api: Api, writer: Writer, say: Callable[[str], None], gone: threading.Event) -> None:
        self._api = api
        self._writer = writer
        self._say = say
        self._gone = gone

    def tell(self, what: str, name: str, step: int, error: Exception) -> None:
        """`what`: "checkpoint" or "output"; `name`: of what was not stored. Returns when the server knows, or nobody
        wants to hear it any more."""
        why = words_of(error)
        self._say(f"{name} was not stored: {why}")
        self._tell(what, step, why)

    def untracked(self, step: int, why: str) -> None:
        """The code's metrics do not reach a tracker of its owner's. The log has it from the code."""
        self._tell("tracking", step, why)

    def _tell(self, what: str, step: int, why: str) -> None:
        try:
            patiently(lambda: self._api.refused(self._writer, what=what, step=step, why=why), self._gone)
        except AgentError:  # fenced, or an older server
            return


def words_of(error: Exception) -> str:
    """The reason for whoever wrote the script: what, why, and what would be accepted."""
    if isinstance(error, Refused):
        text = error.message if not error.param or error.param in error.message else f"{error.param}: {error.message}"
    elif isinstance(error, OSError):
        name = Path(os.fsdecode(error.filename)).name if isinstance(error.filename, (str, bytes)) else ""
        reason = _REASONS.get(error.errno or 0) or error.strerror or str(error)
        text = f"{shown(name)} {reason}" if name else reason
    else:
        text = str(error)
    return (text or type(error).__name__)[:MOST_CHARS]


def shown(name: str) -> str:
    """A file's name as it can be printed, and no longer than a line."""
    text = repr(name) if not name.isprintable() else name
    return text if len(text) <= _NAME_CHARS else f"{text[:_NAME_CHARS]}... ({len(name)} characters)"
