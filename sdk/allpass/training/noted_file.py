"""Files that are written with a note beside them, from which the agent knows their content without reading them.

    with NotedFile(folder / "state", size_bytes) as file:
        file.write(memoryview(data))

A large file travels in pieces, each named by its SHA-256. The note of `state` is `.state.allpass-note`, lines of JSON:
first the file's size, its inode and the size of a piece, then the hash of each piece as soon as it is written and
hashed, last the time of the file's last change. So pieces can travel while the rest is still being written. The time is
one that the clock of a file system never gives by itself, so a file that is changed afterwards, however soon, shows.

A note is never needed: without one, with half of one or with one that does not fit its file, the agent reads the file.
It is written under Allpass alone (ALLPASS_PIECE_BYTES).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Deque, List, Optional, Tuple

PIECE_BYTES_VARIABLE = "ALLPASS_PIECE_BYTES"
FORMAT = 1
_CLOSED_BY_EXEC = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)  # Windows lacks the one, and needs the other
_MOST_PIECES = 4096  # larger files have larger pieces
_MOST_WAITING = 8  # pieces in memory: what a GPU gave has no other place

_Piece = List[Tuple[memoryview, object]]


class NotedFile:
    """A new file of exactly `size_bytes`, written from its beginning to its end. One thread writes.

    `piece_bytes`: by default what the agent wants; None, and for what is smaller: no note.
    """

    def __init__(self, path: Path, size_bytes: int, piece_bytes: "Optional[int]" = None) -> None:
        piece_bytes = _wanted_piece_bytes(size_bytes) if piece_bytes is None else piece_bytes
        self._file = Path(path).open("wb", buffering=0)  # noqa: SIM115 - closed by __exit__
        self._note: "Optional[_Note]" = None
        if piece_bytes and size_bytes >= piece_bytes:
            with contextlib.suppress(OSError):  # a disk that is full is told by the file itself
                self._note = _Note(Path(path), self._file.fileno(), size_bytes, piece_bytes)

    def write(self, data: memoryview, owner: object = None) -> None:
        """Append all of it. It must not change before the file is closed; `owner` is kept alive until then."""
        while data:
            part = data if self._note is None else data[: self._note.room]
            left = part
            while left:
                left = left[self._file.write(left) :]
            if self._note is not None:
                self._note.add(part, owner)
            data = data[len(part) :]

    def __enter__(self) -> "NotedFile":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if self._note is not None:
                self._note.close(is_whole=kind is None)
        finally:
            self._file.close()


class _Note:
    """Hashes what was written, in a thread of its own: hashlib lets the writing go on meanwhile."""

    def __init__(self, path: Path, file: int, size_bytes: int, piece_bytes: int) -> None:
        self._path = path.with_name(f".{path.name}.allpass-note")
        self._file = file
        self._size_bytes = size_bytes
        self._piece_bytes = piece_bytes
        self._piece: _Piece = []  # under way
        self._piece_has = 0
        self._added = 0  # bytes
        self._count = 0  # whole pieces
        self._changed = threading.Condition()  # guards the next three
        self._waiting: "Deque[Tuple[int, _Piece]]" = deque()
        self._is_over = False
        self._failed = False
        self._out = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | _CLOSED_BY_EXEC, 0o644)
        try:
            inode = os.fstat(file).st_ino
            self._say({"format": FORMAT, "size_bytes": size_bytes, "inode": inode, "piece_bytes": piece_bytes})
        except BaseException:
            os.close(self._out)
            raise
        self._thread = threading.Thread(target=self._work, name="allpass-note", daemon=True)
        self._thread.start()

    @property
    def room(self) -> int:
        """Bytes until the end of the piece under way."""
        return self._piece_bytes - self._piece_has

    def add(self, data: memoryview, owner: object) -> None:
        """At most as many as there is room for; they are in the file."""
        self._piece.append((data, owner))
        self._piece_has += len(data)
        self._added += len(data)
        if self.room == 0 or self._added == self._size_bytes:
            self._end_piece()

    def close(self, *, is_whole: bool) -> None:
        """The note is finished, or gone."""
        if self._piece:
            self._end_piece()
        is_whole = is_whole and self._added == self._size_bytes
        with self._changed:
            self._is_over = True
            if not is_whole:
                self._waiting.clear()
            self._changed.notify_all()
        while self._hash_one():  # the writer has nothing else to do any more
            pass
        self._thread.join()
        try:
            with contextlib.suppress(OSError):
                if is_whole and not self._failed and self._finish():
                    return
                self._path.unlink()
        finally:
            os.close(self._out)

    def _finish(self) -> bool:
        """Give the file a time of its own, and note it. False where times are coarser: a change that came soon would
        not show."""
        moment_ns = time.time_ns() | 1
        os.utime(self._file, ns=(moment_ns, moment_ns))
        if os.fstat(self._file).st_mtime_ns != moment_ns:
            return False
        self._say({"mtime_ns": moment_ns})
        return True

    def _end_piece(self) -> None:
        piece, self._piece, self._piece_has = self._piece, [], 0
        with self._changed:
            self._waiting.append((self._count, piece))
            is_much = len(self._waiting) > _MOST_WAITING
            self._changed.notify_all()
        self._count += 1
        if is_much:
            self._hash_one()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_over)
                if not self._waiting:
                    return
            self._hash_one()

    def _hash_one(self) -> bool:
        """From either thread: hash the piece that has waited longest; False when none waits."""
        with self._changed:
            if not self._waiting:
                return False
            number, piece = self._waiting.popleft()
        digest = hashlib.sha256()
        for part, _ in piece:
            digest.update(part)
        try:
            self._say({"piece": number, "sha256": digest.hexdigest()})
        except OSError:
            self._failed = True
        return True

    def _say(self, line: "dict[str, Any]") -> None:
        """One write call per line: a reader meets whole lines, and at most one torn one at the end."""
        os.write(self._out, json.dumps(line).encode() + b"\n")


def _wanted_piece_bytes(size_bytes: int) -> int:
    """0: none."""
    text = os.environ.get(PIECE_BYTES_VARIABLE, "")
    size = int(text) if text.isascii() and text.isdigit() else 0
    while 0 < size * _MOST_PIECES < size_bytes:
        size *= 2
    return size
