"""The metrics file: read as it grows, judged line by line, sent in batches.

What was read and not yet sent waits in a file of ours, so a server that is away costs no memory and loses no point.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, List, Optional, Tuple

from workers.agent.api import Api, Writer
from workers.agent.errors import AgentError, Fenced, Refused, Unsafe
from workers.agent.facts import facts_of, profile_of, tokens_before, watched_of
from workers.agent.files import Fence
from workers.agent.patience import patiently

READ_S = 0.1
READ_SOON_S = 0.02  # once the process was asked to save: training pauses meanwhile
SEND_S = 0.5
POINTS_PER_REPORT = 500
BYTES_PER_REPORT = 4 * 1024 * 1024  # the server takes twice as much
MOST_VALUES = 100
LONGEST_NAME = 200
LARGEST_VALUE = 1e100
LONGEST_LINE_BYTES = 1024 * 1024
READ_BYTES = 4 * 1024 * 1024
HIGHEST_STEP = 2**53
_RESERVED = frozenset({"step", "checkpoint"})


@dataclass(frozen=True)
class Line:
    """One good line. `offset`: where it begins in the file. `training`: what the code tells of its training; `profile`:
    what a profile run found; `tokens_before`: what the job had read when this run began;
    `watched`: how a job does that waits for this one's weights; `left_out`: why some of the line's values are not
    there, in words."""

    step: int
    values: Dict[str, float]
    checkpoint: Optional[str]
    offset: int
    training: Dict[str, Any] = field(default_factory=dict)
    profile: Dict[str, Any] = field(default_factory=dict)
    tokens_before: Optional[int] = None
    watched: Dict[str, Any] = field(default_factory=dict)
    left_out: Tuple[str, ...] = ()


def parse(text: bytes, offset: int) -> Line:
    """The line that `text` is. Raises ValueError saying what is wrong with it."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(record, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - a fault of the line, not of a caller
    step = record.get("step")
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < HIGHEST_STEP:
        raise ValueError('it has no "step" that is a whole number from 0 on')
    checkpoint = record.get("checkpoint")
    if checkpoint is not None and (not isinstance(checkpoint, str) or not checkpoint):
        raise ValueError('its "checkpoint" is not the name of a folder')
    told = record.get("training")
    values, left_out = _numbers(record)
    return Line(
        step,
        values,
        checkpoint,
        offset,
        facts_of(told),
        profile_of(told),
        tokens_before(told),
        watched_of(told),
        left_out,
    )


class Tail:
    """Reads whole lines that were added to a file since the last call. A file that was replaced is read anew."""

    def __init__(self, path: Path, fence: Fence) -> None:
        self._path = path
        self._fence = fence
        self._file: Optional[BinaryIO] = None
        self._offset = 0  # of the first byte not handed out yet
        self._rest = b""

    def read(self, *, final: bool = False) -> List["tuple[bytes, int]"]:
        """(line, offset) each; `final` also gives the last line without an end."""
        self._reopen_if_replaced()
        if self._file is None:
            return []
        self._rest += self._file.read() if final else self._file.read(READ_BYTES)
        *whole, self._rest = self._rest.split(b"\n")
        lines = []
        for line in whole:
            lines.append((line, self._offset))
            self._offset += len(line) + 1
        if final or len(self._rest) > LONGEST_LINE_BYTES:
            lines.append((self._rest, self._offset))
            self._offset += len(self._rest)
            self._rest = b""
        return [(line, offset) for line, offset in lines if line.strip()]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _reopen_if_replaced(self) -> None:
        try:
            there = self._path.stat()
        except OSError:  # removed: what we have open is all there was
            return
        if self._file is not None:
            mine = _facts(self._file)
            if (there.st_dev, there.st_ino) == mine[:2] and there.st_size >= self._file.tell():
                return
            self.close()
        self._file = self._fence.open(self._path)
        self._offset, self._rest = 0, b""


class Metrics:
    """Tells of steps and checkpoints as they come (`on_line`), and sends points to the control plane.

    Two threads: reading goes on while sending waits for the server.
    """

    def __init__(
        self,
        api: Api,
        writer: Writer,
        tail: Tail,
        queue: Path,
        *,
        on_line: Callable[[Line], None],
        on_fenced: Callable[[], None],
        say: Callable[[str], None],
        gone: threading.Event,
    ) -> None:
        self._api = api
        self._writer = writer
        self._tail = tail
        self._on_line = on_line
        self._on_fenced = on_fenced
        self._say = say
        self._gone = gone
        self._told: "set[str]" = set()
        self._queue_out = queue.open("wb")
        self._queue_in = queue.open("rb")
        self._read_s = READ_S
        self._read_all = threading.Event()  # no line will come any more: the process has ended
        self._sent_all = threading.Event()  # and all of them are in the queue
        self._hurry = threading.Event()  # somebody waits for the queue to be sent
        self._progress = threading.Condition()  # guards the next three
        self._queued = 0  # points put into the queue
        self._settled = 0  # of these: sent, or refused for good
        self._sending = True
        self._reader = threading.Thread(target=self._read, name="metrics-reader", daemon=True)
        self._sender = threading.Thread(target=self._send, name="metrics-sender", daemon=True)

    def start(self) -> None:
        self._reader.start()
        self._sender.start()

    def finish_reading(self) -> None:
        """Read the file to its end. The process has ended."""
        self._read_all.set()
        self._reader.join()

    def flush(self) -> None:
        """Return when all points that were read so far are sent, or sending is over."""
        with self._progress:
            target = self._queued
            while self._sending and self._settled < target:
                self._hurry.set()
                self._progress.wait(SEND_S)

    def finish_sending(self) -> None:
        """Return when all points are sent, or nobody wants them any more."""
        self._sent_all.set()
        self._hurry.set()
        self._sender.join()
        self._queue_out.close()
        self._queue_in.close()
        self._tail.close()

    def read_often(self) -> None:
        """Somebody waits for what the process says next."""
        self._read_s = READ_SOON_S

    def _read(self) -> None:
        while not self._read_all.wait(self._read_s):
            self._take()
        self._take(final=True)

    def _take(self, *, final: bool = False) -> None:
        try:
            lines = self._tail.read(final=final)
        except (OSError, Unsafe) as error:
            self._complain(f"the metrics file cannot be read: {error}")
            return
        for text, offset in lines:
            try:
                line = parse(text, offset)
            except ValueError as error:
                self._complain(f"a line of the metrics file is skipped, for {error}: {_excerpt(text)}", str(error))
                continue
            for why in line.left_out:
                self._complain(f"of the metrics file, {why}: from step {line.step} on", why)
            try:
                if line.values:
                    self._enqueue(line)
            except OSError as error:
                self._complain(f"metric points are lost, for they cannot be kept on this machine: {error}")
            self._on_line(line)

    def _enqueue(self, line: Line) -> None:
        point = {"step": line.step, "at_ms": time.time_ns() // 1_000_000, "values": line.values}
        self._queue_out.write(json.dumps(point).encode() + b"\n")
        self._queue_out.flush()
        with self._progress:
            self._queued += 1

    def _send(self) -> None:
        try:
            self._send_all()
        finally:
            with self._progress:
                self._sending = False
                self._progress.notify_all()

    def _send_all(self) -> None:
        partial = b""
        while not self._gone.is_set():
            ending = self._sent_all.is_set()
            points, partial = self._next_points(partial)
            if points:
                if not self._report(points):
                    return
                with self._progress:
                    self._settled += len(points)
                    self._progress.notify_all()
            elif ending:
                return
            if len(points) < POINTS_PER_REPORT and self._hurry.wait(SEND_S):
                self._hurry.clear()

    def _next_points(self, partial: bytes) -> "tuple[List[Any], bytes]":
        points: List[Any] = []
        size_bytes = 0
        while len(points) < POINTS_PER_REPORT and size_bytes < BYTES_PER_REPORT:
            partial += self._queue_in.readline()
            if not partial.endswith(b"\n"):
                break
            size_bytes += len(partial)
            points.append(json.loads(partial))
            partial = b""
        return points, partial

    def _report(self, points: List[Any]) -> bool:
        """False when sending is over."""
        try:
            patiently(lambda: self._api.metrics(self._writer, points), self._gone)
        except Fenced:
            self._on_fenced()
            return False
        except Refused as error:
            self._complain(f"{len(points)} metric points were refused: {error}", "refused")
        except AgentError:
            return False
        return True

    def _complain(self, remark: str, kind: Optional[str] = None) -> None:
        if (kind or remark) not in self._told:
            self._told.add(kind or remark)
            self._say(remark)


def _numbers(record: Dict[str, Any]) -> "Tuple[Dict[str, float], Tuple[str, ...]]":
    """The values of a line that can be kept, and why others are left out."""
    numbers: Dict[str, float] = {}
    left_out: Dict[str, None] = {}
    for name, value in record.items():
        if name in _RESERVED or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if not abs(value) <= LARGEST_VALUE:  # nor is NaN
            left_out["values are left out that are no numbers, or larger than 1e100"] = None
        elif len(numbers) >= MOST_VALUES:
            left_out[f"only {MOST_VALUES} values of a step are kept"] = None
        else:
            if len(name) > LONGEST_NAME:
                left_out[f"names of values are cut to {LONGEST_NAME} characters"] = None
            numbers[name.replace("\0", "").encode("utf-8", "replace").decode()[:LONGEST_NAME]] = float(value)
    return numbers, tuple(left_out)


def _facts(file: BinaryIO) -> "tuple[int, int]":
    facts = os.fstat(file.fileno())
    return facts.st_dev, facts.st_ino


def _excerpt(text: bytes) -> str:
    return repr(text[:80].decode("utf-8", "replace"))
