"""A disk that is full for one process, for as long as a file is there."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def fill_when(flag: Path, below: Path) -> None:
    """From now on this process can write nothing below the folder while `flag` exists. There is no way back."""
    named, folder = str(flag), f"{below}/"

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event not in {"open", "os.mkdir", "os.rename"}:
            return
        path, *rest = arguments
        if not isinstance(path, str | bytes | os.PathLike) or not os.fsdecode(path).startswith(folder):
            return
        if event == "open" and not (isinstance(rest[1], int) and rest[1] & _WRITES):
            return
        if os.access(named, os.F_OK):
            raise OSError(errno.ENOSPC, "No space left on device", path)

    sys.addaudithook(hook)
