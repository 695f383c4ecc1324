"""Pieces of a job's log on their way to the store: on disk, in order, bounded.

A log may come faster than it can be sent. That neither slows the process down nor fills the disk: of what waits the
oldest is left out, and a line in its place says how much. Pieces get their numbers when they are handed out, so that
those of a log have no gaps.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import threading
from collections import deque
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Deque, Dict, List, NamedTuple

from workers.agent.files import Piece

LIMIT_BYTES = 64 * 1024 * 1024  # may wait; beyond it half of it is left out
LOG_BYTES = 256 * 1024 * 1024  # of a run's log are stored, and its end
LAST_BYTES = 1024 * 1024  # that end, and what is kept where there is no time for more
BEHIND_BYTES = 1024 * 1024
_STATE = "state.json"


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


class _Waiting(NamedTuple):
    file: Path
    size_bytes: int
    line_count: int
    first_ms: int
    last_ms: int


class Spool:
    """A queue of chunks in `folder`. What an earlier agent left there is its beginning.

    At most `limit_bytes` wait. Once `log_bytes` were handed out, nothing more is until `keep_last`: a log that is
    longer has its beginning and its end. Nothing here blocks.
    """

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES, log_bytes: int = LOG_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._limit_bytes = min(limit_bytes, max(log_bytes, LAST_BYTES))
        self._log_bytes = log_bytes
        self._changed = threading.Condition()  # guards all below
        self._out: Deque[Chunk] = deque(_adopt(file) for file in sorted(folder.glob("[0-9]*.log")))
        self._waiting: Deque[_Waiting] = deque(_parsed(file) for file in sorted(folder.glob("w*.log")))
        self._waiting_bytes = sum(one.size_bytes for one in self._waiting)
        self._order = int(self._waiting[-1].file.name[1:].split("-")[0]) + 1 if self._waiting else 0
        self._state = _State.read(folder / _STATE)
        if self._out:
            self._state.next = max(self._state.next, self._out[-1].sequence + 1)
        self._closing = False
        self._abandoned = False
        self._lost_lines = 0  # since the last chunk that could be kept

    def put(self, data: bytes, *, line_count: int, first_ms: int, last_ms: int) -> None:
        with self._changed:
            if self._abandoned:
                return
            if self._lost_lines:
                data = f"allpass: {self._lost_lines} lines could not be kept on this machine\n".encode() + data
                line_count += 1
            name = f"w{self._order:010d}-{line_count}-{first_ms}-{last_ms}.log"
            try:
                file = self._write(name, data)
            except OSError as error:  # the disk is full: the training matters more, and the gap will be told
                print(f"allpass agent: a piece of the log is lost: {error}", file=sys.stderr)
                self._lost_lines += data.count(b"\n") or 1
                self._leave_out(self._waiting_bytes // 2)
                return
            self._lost_lines = 0
            self._waiting.append(_Waiting(file, len(data), line_count, first_ms, last_ms))
            self._order += 1
            self._waiting_bytes += len(data)
            if self._waiting_bytes > self._limit_bytes:
                self._leave_out(self._limit_bytes // 2)
            self._changed.notify_all()

    @property
    def is_behind(self) -> bool:
        """More waits than one report brings."""
        return self._waiting_bytes > BEHIND_BYTES

    @property
    def is_full(self) -> bool:
        """All of the log is stored that may be, but its end."""
        with self._changed:
            return self._is_full()

    def head(self, most: int, most_bytes: int = sys.maxsize) -> List[Chunk]:
        """The oldest chunks, at most `most`, and none beyond the one with which they have `most_bytes`; they stay until
        `drop`."""
        with self._changed:
            numbered = False
            while len(self._out) < most and sum(one.size_bytes for one in self._out) < most_bytes and self._ready():
                self._hand_out()
                numbered = True
            if numbered:
                self._save()
            return list(islice(self._out, most))

    def drop(self, chunks: List[Chunk]) -> None:
        """Forget the oldest chunks: they are safe elsewhere."""
        with self._changed:
            for chunk in chunks:
                if not self._out or self._out[0] != chunk:
                    raise ValueError(f"chunk {chunk.sequence} is not the oldest one")
                self._out.popleft()
                chunk.file.unlink()
            self._changed.notify_all()

    def keep_last(self, most_bytes: int = LAST_BYTES) -> bool:
        """There is no time for more than what is under way and the end: the rest is left out. Whether there is an end
        to be handed out."""
        with self._changed:
            self._closing = True
            if self._waiting_bytes > most_bytes:
                self._leave_out(most_bytes)
            self._changed.notify_all()
            return bool(self._waiting)

    def wait_for_chunk(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._out) or self._ready(), timeout_s)

    def abandon(self) -> None:
        """What is put from now on goes nowhere."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    # All below with the lock.

    def _ready(self) -> bool:
        return bool(self._waiting) and (self._closing or not self._state.is_told_full)

    def _is_full(self) -> bool:
        return self._state.sent_bytes >= self._log_bytes

    def _hand_out(self) -> None:
        """The next chunk gets its number: a line that tells what is missing, or the oldest that waits."""
        state = self._state
        if self._is_full() and not self._closing:
            state.is_told_full = True
            self._tell(f"this log has {state.sent_bytes:,} bytes: of what follows, only the end is kept")
        elif state.gap_bytes:
            lines = f"{state.gap_lines:,} lines ({state.gap_bytes:,} bytes) of this log"
            self._tell(f"{lines} are left out here: there were more than could be sent")
            state.gap_lines = state.gap_bytes = 0
        else:
            one = self._waiting.popleft()
            self._waiting_bytes -= one.size_bytes
            self._number(one)

    def _tell(self, remark: str) -> None:
        """In a line of its own."""
        data = ("\n" if self._state.is_within_line else "").encode() + f"allpass: {remark}\n".encode()
        now_ms = self._waiting[0].first_ms
        try:
            file = self._write("remark.part", data)
        except OSError as error:
            print(f"allpass agent: a remark in the log is lost: {error}", file=sys.stderr)
            return
        self._number(_Waiting(file, len(data), data.count(b"\n"), now_ms, now_ms))

    def _number(self, one: _Waiting) -> None:
        state = self._state
        name = f"{state.next:010d}-{one.line_count}-{one.first_ms}-{one.last_ms}.log"
        chunk = _adopt(one.file.replace(self._folder / name))
        self._out.append(chunk)
        state.next += 1
        state.sent_bytes += chunk.size_bytes
        with chunk.file.open("rb") as file:
            file.seek(-1, 2)
            state.is_within_line = file.read() != b"\n"

    def _leave_out(self, keep_bytes: int) -> None:
        """Of what waits, all but the newest so many bytes; the newest chunk stays in any case."""
        while self._waiting_bytes > keep_bytes and len(self._waiting) > 1:
            one = self._waiting.popleft()
            self._waiting_bytes -= one.size_bytes
            self._state.gap_lines += one.line_count
            self._state.gap_bytes += one.size_bytes
            one.file.unlink()
        self._save()

    def _write(self, name: str, data: bytes) -> Path:
        part = self._folder / f"{name}.part"
        part.write_bytes(data)
        return part.replace(self._folder / name)

    def _save(self) -> None:
        with contextlib.suppress(OSError):  # what it is for is an agent that starts again
            self._write(_STATE, json.dumps(vars(self._state)).encode())


@dataclass
class _State:
    """What the files of a spool do not tell. The gap is before the oldest chunk that waits."""

    next: int = 0  # number
    sent_bytes: int = 0
    gap_lines: int = 0
    gap_bytes: int = 0
    is_within_line: bool = False  # the last chunk that was handed out ends so
    is_told_full: bool = False

    @classmethod
    def read(cls, file: Path) -> _State:
        try:
            told: Dict[str, Any] = json.loads(file.read_bytes())
            return cls(**told)
        except (OSError, ValueError, TypeError):
            return cls()


def _parsed(file: Path) -> _Waiting:
    _, line_count, first_ms, last_ms = file.stem.split("-")
    return _Waiting(file, file.stat().st_size, int(line_count), int(first_ms), int(last_ms))


def _adopt(file: Path) -> Chunk:
    sequence, line_count, first_ms, last_ms = file.stem.split("-")
    data = file.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    return Chunk(int(sequence), file, digest, len(data), int(line_count), int(first_ms), int(last_ms))
