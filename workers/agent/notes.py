"""What the writer of a file says of its content (`allpass.training.noted_file`): hashes that need not be made again.

A note is the word of user code. It is believed where a mistake costs a second try and nothing else: the file must be
the very one that was noted and unchanged since, and each hash is proven before a checkpoint is committed, by the
store that takes the piece or by reading it here (`checkpoints.py`).
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Dict, Optional

from workers.agent.errors import Unsafe
from workers.agent.files import Fence

FORMAT = 1
_LEAST_PIECE_BYTES = 4096
_MOST_PIECES = 20_000  # of one checkpoint
_LINE_BYTES = 200  # at most
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Note:
    """`hashes`: of the pieces that are written, by number. `mtime_ns`: of the file when it was finished, else None."""

    size_bytes: int
    inode: int
    piece_bytes: int
    hashes: Dict[int, str]
    mtime_ns: Optional[int]

    def length(self, number: int) -> int:
        """Of that piece, in bytes."""
        return min(self.piece_bytes, self.size_bytes - number * self.piece_bytes)

    @property
    def count(self) -> int:
        """How many pieces the file has."""
        return -(-self.size_bytes // self.piece_bytes)

    def is_of(self, facts: os.stat_result) -> bool:
        """Whether it tells all of this very file, as it is now."""
        told = (self.size_bytes, self.inode, self.mtime_ns, len(self.hashes))
        return told == (facts.st_size, facts.st_ino, facts.st_mtime_ns, self.count)


def note_of(fence: Fence, path: Path) -> Optional[Note]:
    """The note of the file at `path`, as far as it goes; None when there is none that can be read."""
    try:
        with fence.open(path.with_name(f".{path.name}.allpass-note")) as file:
            return _parsed(file)
    except (OSError, Unsafe, ValueError, KeyError, TypeError, RecursionError):
        return None


def _parsed(file: BinaryIO) -> Note:
    first = json.loads(file.readline(_LINE_BYTES))
    size_bytes, piece_bytes = int(first["size_bytes"]), int(first["piece_bytes"])
    if first["format"] != FORMAT or piece_bytes < _LEAST_PIECE_BYTES or size_bytes < piece_bytes:
        raise ValueError("another format")
    count = -(-size_bytes // piece_bytes)
    if count > _MOST_PIECES:
        raise ValueError("too many pieces")
    hashes: Dict[int, str] = {}
    mtime_ns: Optional[int] = None
    for _ in range(count + 1):
        text = file.readline(_LINE_BYTES)
        if not text.endswith(b"\n"):  # torn, or not written yet
            break
        line: Dict[str, Any] = json.loads(text)
        if "mtime_ns" in line:
            mtime_ns = int(line["mtime_ns"])
        elif 0 <= int(line["piece"]) < count and _SHA256.fullmatch(line["sha256"]):
            hashes[int(line["piece"])] = line["sha256"]
        else:
            raise ValueError("no such piece")
    return Note(size_bytes, int(first["inode"]), piece_bytes, hashes, mtime_ns)
