"""Pieces of a job's log on their way to the store: on disk, in order, bounded."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Deque, Dict, List

from workers.agent.files import Piece

LIMIT_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True)
class Chunk:
    """A stored piece of the log: its number in the run, its file, and when its first and last bytes came."""

    sequence: int
    file: Path
    sha256: str
    size_bytes: int
    line_count: int
    first_ms: int
    last_ms: int

    def piece(self) -> Piece:
        return Piece(self.file.name, self.sha256, self.size_bytes)

    def as_wire(self) -> Dict[str, object]:
        names = ("sequence", "sha256", "size_bytes", "line_count", "first_ms", "last_ms")
        return {name: getattr(self, name) for name in names}


class Spool:
    """A queue of chunks in `folder`. What an earlier agent left there is its beginning.

    Whoever feeds it calls `wait_for_room` first, which blocks while more than `limit_bytes` wait: the process that
    writes is slowed down rather than a line lost. `put` itself never blocks, so the thread that empties the spool
    may use it too.
    """

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._changed = threading.Condition()  # guards all below
        self._chunks: Deque[Chunk] = deque(_adopt(file) for file in sorted(folder.glob("*.log")))
        self._bytes = sum(chunk.size_bytes for chunk in self._chunks)
        self._next = self._chunks[-1].sequence + 1 if self._chunks else 0
        self._abandoned = False
        self._lost_lines = 0  # since the last chunk that could be kept

    def put(self, data: bytes, *, line_count: int, first_ms: int, last_ms: int) -> None:
        with self._changed:
            if self._abandoned:
                return
            if self._lost_lines:
                data = f"allpass: {self._lost_lines} lines could not be kept on this machine\n".encode() + data
                line_count += 1
            name = f"{self._next:010d}-{line_count}-{first_ms}-{last_ms}.log"
            part = self._folder / f"{name}.part"
            try:
                part.write_bytes(data)
                file = part.replace(self._folder / name)
            except OSError as error:  # the disk is full: the training matters more, and the gap will be told
                print(f"allpass agent: a piece of the log is lost: {error}", file=sys.stderr)
                self._lost_lines += data.count(b"\n") or 1
                return
            self._lost_lines = 0
            self._chunks.append(
                Chunk(self._next, file, hashlib.sha256(data).hexdigest(), len(data), line_count, first_ms, last_ms)
            )
            self._next += 1
            self._bytes += len(data)
            self._changed.notify_all()

    def wait_for_room(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._bytes < self._limit_bytes or self._abandoned)

    def head(self, most: int) -> List[Chunk]:
        """The oldest chunks, at most `most`; they stay until `drop`."""
        with self._changed:
            return [self._chunks[index] for index in range(min(most, len(self._chunks)))]

    def drop(self, chunks: List[Chunk]) -> None:
        """Forget the oldest chunks: they are safe elsewhere."""
        with self._changed:
            for chunk in chunks:
                if not self._chunks or self._chunks[0] != chunk:
                    raise ValueError(f"chunk {chunk.sequence} is not the oldest one")
                self._chunks.popleft()
                self._bytes -= chunk.size_bytes
                chunk.file.unlink()
            self._changed.notify_all()

    def wait_for_chunk(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._chunks), timeout_s)

    def abandon(self) -> None:
        """Let go of whoever waits for room; what is put from now on goes nowhere."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()


def _adopt(file: Path) -> Chunk:
    sequence, line_count, first_ms, last_ms = file.stem.split("-")
    data = file.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    return Chunk(int(sequence), file, digest, len(data), int(line_count), int(first_ms), int(last_ms))
