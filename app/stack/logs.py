"""The log of a child: appended to over its restarts, and never without an end."""

from __future__ import annotations

from pathlib import Path
from typing import IO

MOST_BYTES = 16 * 1024 * 1024


def open_log(path: Path) -> IO[bytes]:
    """For appending. One that has grown too large is set aside first, in place of the one before it."""
    if path.exists() and path.stat().st_size > MOST_BYTES:
        path.replace(path.with_name(f"{path.name}.1"))
    return path.open("ab")


def tail_of(path: Path, size_bytes: int) -> str:
    """The end of a log, for a message."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - size_bytes))
            return log.read().decode(errors="replace").strip()
    except OSError:
        return "(no log)"


def last_line(path: Path, most_chars: int = 200) -> str:
    """The last line of a log, for a message of one line."""
    return tail_of(path, 2000).rpartition("\n")[2][-most_chars:]
