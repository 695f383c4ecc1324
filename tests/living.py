"""Folders in which living processes write: what has just been listed may be gone when it is looked at."""

from __future__ import annotations

import os
from pathlib import Path


def paths_below(folder: Path) -> list[Path]:
    """Folders and files, but for those that go meanwhile, at which `Path.rglob` raises FileNotFoundError.

    Raises it where `folder` itself is not there: nothing would be found in it, whatever was looked for.
    """
    folder.stat()
    return [Path(place, name) for place, folders, files in os.walk(folder, onerror=_gone) for name in folders + files]


def files_with(text: str | bytes, folder: Path) -> list[Path]:
    """The files below it that hold this text."""
    sought = text.encode() if isinstance(text, str) else text
    return [path for path in paths_below(folder) if sought in _content(path)]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.is_file() else b""
    except FileNotFoundError:
        return b""


def _gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
