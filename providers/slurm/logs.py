"""What jobs write, in a folder that the nodes share with this host: a file for each machine, for its owner alone."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from app.errors import InvalidRequest, Transient

_PREFIX = "allpass-"
_KEPT_MS = 7 * 86_400_000
_MOST_BYTES = 256 * 1024


class JobLogs:
    """`folder`: empty where nothing is kept. Its calls block: they may reach over a network."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def path_of(self, label: str) -> str:
        return f"{self._folder.rstrip('/')}/{_PREFIX}{label}.log" if self._folder else "/dev/null"

    def open(self, label: str, now_ms: int) -> None:
        """Make the file, which Slurm then appends to, and remove those of long ago. Raises InvalidRequest."""
        if not self._folder:
            return
        for old in Path(self._folder).glob(f"{_PREFIX}node_*.log"):
            with contextlib.suppress(OSError):
                if old.stat().st_mtime * 1000 < now_ms - _KEPT_MS:
                    old.unlink()
        try:
            os.close(os.open(self.path_of(label), os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError as error:
            raise InvalidRequest(
                f"ALLPASS_SLURM_LOG_DIR is {self._folder}, where no file can be made: {error.strerror}; name a folder "
                "of this user that the nodes share, or leave it out"
            ) from error

    def tail(self, label: str, lines: int) -> str:
        """The last of it; empty for a machine that never wrote."""
        if not self._folder or lines <= 0:
            return ""
        path = self.path_of(label)
        try:
            with Path(path).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_BYTES))
                text = file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise Transient(f"{path} cannot be read: {error.strerror or error}") from error
        return "".join(text.splitlines(keepends=True)[-lines:])
