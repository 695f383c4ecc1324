"""A checkpoint: a committed, checksummed manifest of content-addressed files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from app.errors import InvalidInput

SHA256_HEX = re.compile(r"^[0-9a-f]{64}\Z")
MAX_PATH_CHARS = 512


class CheckpointState(StrEnum):
    OPEN = "open"  # its pieces are being uploaded and are pinned
    COMMITTED = "committed"  # complete, verified, may be resumed from
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file: its path inside the checkpoint (relative, `/` separated), content hash and size."""

    path: str
    sha256: str
    size_bytes: int


def check_entries(entries: tuple[FileEntry, ...]) -> None:
    """Refuse paths that leave the directory, repeat or collide, and hashes that are none.

    Raises InvalidInput naming the entry.
    """
    seen: set[str] = set()
    for index, entry in enumerate(entries):
        parts = entry.path.split("/")
        bad_part = any(part in ("", ".", "..") for part in parts)
        if bad_part or "\\" in entry.path or "\x00" in entry.path or len(entry.path) > MAX_PATH_CHARS:
            raise InvalidInput(f"{entry.path!r} is not a relative path inside the folder", param=f"files[{index}].path")
        if entry.path in seen:
            raise InvalidInput(f"{entry.path!r} is named twice", param=f"files[{index}].path")
        if not SHA256_HEX.match(entry.sha256):
            raise InvalidInput("not a lower-case sha256 in hex", param=f"files[{index}].sha256")
        if entry.size_bytes < 0:
            raise InvalidInput("a size is never negative", param=f"files[{index}].size_bytes")
        seen.add(entry.path)
    for index, entry in enumerate(entries):
        parents = accumulate(entry.path.split("/")[:-1], "{}/{}".format)
        if taken := next((parent for parent in parents if parent in seen), None):
            raise InvalidInput(f"{taken!r} is a file and cannot be a folder too", param=f"files[{index}].path")
