"""What makes this machine the one that joined: a number on its disk that nobody else knows."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Optional

_FILE = "nonce"
_BYTES = 32


def machine_nonce(root: Path) -> str:
    """64 hex characters, made up at the first call and the same ever after, as long as the disk stays.

    On disk before it is returned: a server that has seen it must see it again after a crash. Only the agent's user can
    read it. Raises OSError.
    """
    path = root / _FILE
    kept = _read(path)
    if kept is not None:
        return kept
    nonce = os.urandom(_BYTES).hex()
    part = root / f".{_FILE}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(nonce)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    _sync_folder(root)
    return nonce


def _read(path: Path) -> Optional[str]:
    """None for a file that is not there, or not whole."""
    try:
        nonce = path.read_text(encoding="ascii").strip()
        return nonce if len(bytes.fromhex(nonce)) == _BYTES else None
    except (FileNotFoundError, ValueError):
        return None


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
