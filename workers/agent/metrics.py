"""The metrics file: read as it grows, judged line by line, sent in batches.

The end of a run waits for what is read here, so none of it takes long whatever a script writes: lines are parsed many
at a time, points are sent as far as a curve needs them (`points.py`), and what a process leaves unread beyond a
moment's work is only looked through for the lines that count.
"""

from __future__ import annotations

import json
import math
import os
import random
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from workers.agent.api import Api, Writer
from workers.agent.errors import AgentError, Fenced, Refused, Unsafe
from workers.agent.facts import facts_of, profile_of, tokens_before, watched_of
from workers.agent.files import Fence
from workers.agent.patience import PAUSE_AT_THE_END_S, Halt, Respite, patiently
from workers.agent.points import Point, Points, reports_of

READ_S = 0.1
READ_SOON_S = 0.02  # once the process was asked to save: training pauses meanwhile
READ_ON_S = 0.01  # between two blocks: other runs have lines too
SEND_S = 0.5
PARSE_S = 0.5  # after the end of the process; then the rest is looked through
FLUSH_S = 5.0  # for points that somebody waits for, while the server hears us
MOST_VALUES = 100
LONGEST_NAME = 200
LONGEST_LINE_BYTES = 1024 * 1024
READ_BYTES = 1024 * 1024
HIGHEST_STEP = 2**53
_AT_ONCE = 1000  # lines
_SAMPLES = 200  # of a block that is looked through
_MARKS = (b'"checkpoint"', b'"training"')
_RESERVED = frozenset({"step", "checkpoint"})


_NOTHING: Dict[str, Any] = {}
_BETWEEN = random.getrandbits(60)

Text = Tuple[bytes, int]  # a line, and where it begins in the file


class Line(NamedTuple):
    """One good line. `offset`: where it begins in the file. `training`: what the code tells of its training; `profile`:
    what a profile run found; `tokens_before`: what the job had read when this run began;
    `watched`: how a job does that waits for this one's weights."""

    step: int
    values: Dict[str, float]
    checkpoint: Optional[str]
    offset: int
    training: Dict[str, Any] = _NOTHING
    profile: Dict[str, Any] = _NOTHING
    tokens_before: Optional[int] = None
    watched: Dict[str, Any] = _NOTHING


class Fault(NamedTuple):
    """A line that is none, and why."""

    text: bytes
    reason: str


def parse_all(texts: Sequence[Text]) -> "Iterator[Union[Line, Fault]]":
    """What each of them is, in order."""
    for start in range(0, len(texts), _AT_ONCE):
        some = texts[start : start + _AT_ONCE]
        records = _records([text for text, _ in some])
        for index, (text, offset) in enumerate(some):
            try:
                yield parse(text, offset) if records is None else _line(records[index], offset)
            except ValueError as error:
                yield Fault(text, str(error))


def parse(text: bytes, offset: int) -> Line:
    """The line that `text` is. Raises ValueError saying what is wrong with it."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    return _line(record, offset)


def _records(texts: Sequence[bytes]) -> Optional[List[Any]]:
    """What they are as JSON, parsed together; None when one of them is not."""
    try:
        found = json.loads((b"[" + (b",%d," % _BETWEEN).join(texts) + b"]").decode())
    except (ValueError, RecursionError):
        return None
    is_whole = len(found) == 2 * len(texts) - 1 and all(one == _BETWEEN for one in found[1::2])
    return found[::2] if is_whole else None


def _line(record: Any, offset: int) -> Line:
    if not isinstance(record, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - a fault of the line, not of a caller
    step = record.get("step")
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < HIGHEST_STEP:
        raise ValueError('it has no "step" that is a whole number from 0 on')
    checkpoint = record.get("checkpoint")
    if checkpoint is not None and (not isinstance(checkpoint, str) or not checkpoint):
        raise ValueError('its "checkpoint" is not the name of a folder')
    told = record.get("training")
    if told is None:
        return Line(step, _numbers(record), checkpoint, offset)
    return Line(
        step,
        _numbers(record),
        checkpoint,
        offset,
        facts_of(told),
        profile_of(told),
        tokens_before(told),
        watched_of(told),
    )


class Tail:
    """Reads whole lines that were added to a file since the last call, so much at a time. A file that was replaced is
    read anew."""

    def __init__(self, path: Path, fence: Fence) -> None:
        self.is_through = True  # the last call has read all there was
        self._path = path
        self._fence = fence
        self._file: Optional[BinaryIO] = None
        self._offset = 0  # of the first byte not handed out yet
        self._rest = b""
        self._skips = False  # it is within a line that is too long

    def read(self, *, final: bool = False) -> List[Text]:
        """Each line with its offset; `final` also gives the last line without an end. Of a line that is too long only
        the beginning is given."""
        self._reopen_if_replaced()
        if self._file is None:
            self.is_through = True
            return []
        block = self._file.read(READ_BYTES)
        self.is_through = len(block) < READ_BYTES
        *whole, self._rest = (self._rest + block).split(b"\n")
        lines = []
        for line in whole:
            if not self._skips:
                lines.append((line, self._offset))
            self._skips = False
            self._offset += len(line) + 1
        if len(self._rest) > LONGEST_LINE_BYTES or (final and self.is_through):
            if not self._skips:
                lines.append((self._rest, self._offset))
            self._skips = not (final and self.is_through)
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
        self._offset, self._rest, self._skips = 0, b"", False


class Metrics:
    """Tells of steps and checkpoints as they come (`on_lines`), and sends points to the control plane.

    Two threads: reading goes on while sending waits for the server.
    """

    def __init__(
        self,
        api: Api,
        writer: Writer,
        tail: Tail,
        *,
        on_lines: Callable[[Sequence[Line]], None],
        on_fenced: Callable[[], None],
        say: Callable[[str], None],
        gone: threading.Event,
    ) -> None:
        self._api = api
        self._writer = writer
        self._tail = tail
        self._on_lines = on_lines
        self._on_fenced = on_fenced
        self._say = say
        self._gone = Halt(gone)
        self._told: "set[str]" = set()
        self._points = Points()
        self._read_s = READ_S
        self._read_all = threading.Event()  # no line will come any more: the process has ended
        self._sent_all = threading.Event()  # and all of them were read
        self._hurry = threading.Event()  # somebody waits for points to be sent
        self._progress = threading.Condition()  # guards the next three
        self._asked = 0  # so often somebody wanted all that was there to be sent
        self._answered = 0  # and it was, or refused for good
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
        """Return when the points that were read so far are sent, or sending is over. A server that hears us and will
        not have them is not waited for."""
        respite = Respite(FLUSH_S, self._api.is_away)
        with self._progress:
            self._asked += 1
            mine = self._asked
            while self._sending and self._answered < mine and not respite.is_over():
                self._hurry.set()
                self._progress.wait(SEND_S)

    def finish_sending(self) -> None:
        """Return when all points are sent, or nobody wants them any more; as `flush`."""
        self._sent_all.set()
        respite = Respite(FLUSH_S, self._api.is_away)
        while self._sender.is_alive() and not respite.is_over():
            self._hurry.set()
            self._sender.join(SEND_S)
        if self._sender.is_alive():
            self._gone.set()
            self._complain("the last metric points are lost, for they could not be sent in time")
        if self._points.left_out:
            self._say(f"{self._points.left_out:,} metric points were left out; first, last and extremes were kept")
        self._tail.close()

    def read_often(self) -> None:
        """Somebody waits for what the process says next."""
        self._read_s = READ_SOON_S

    def _read(self) -> None:
        while not self._read_all.wait(self._read_s if self._tail.is_through else READ_ON_S):
            self._take()
        parse_until_s = time.monotonic() + PARSE_S
        self._take(final=True)
        while not self._tail.is_through:
            self._take(final=True, skims=time.monotonic() > parse_until_s)

    def _take(self, *, final: bool = False, skims: bool = False) -> None:
        try:
            texts = self._tail.read(final=final)
        except (OSError, Unsafe) as error:
            self._complain(f"the metrics file cannot be read: {error}")
            self._tail.is_through = True
            return
        if skims:
            looked_at = skimmed(texts)
            self._points.leave_out(len(texts) - len(looked_at))
            texts = looked_at
        now_ms = time.time_ns() // 1_000_000
        lines: List[Line] = []
        for found in parse_all(texts):
            if isinstance(found, Line):
                lines.append(found)
            else:
                remark = f"a line of the metrics file is skipped, for {found.reason}: {_excerpt(found.text)}"
                self._complain(remark, found.reason)
        self._points.add([Point(line.step, now_ms, line.values) for line in lines if line.values])
        if lines:
            self._on_lines(lines)

    def _send(self) -> None:
        try:
            self._send_all()
        finally:
            with self._progress:
                self._sending = False
                self._progress.notify_all()

    def _send_all(self) -> None:
        while not self._gone.is_set():
            ending = self._sent_all.is_set()
            with self._progress:
                asked = self._asked
                at_once = ending or self._answered < asked
            for report in reports_of(self._points.take(at_once=at_once)):
                if not self._report(report):
                    return
            with self._progress:
                if at_once:
                    self._answered = asked
                    self._progress.notify_all()
            if ending:
                return
            if self._points.left_out:
                self._complain(
                    "more is measured than a curve needs: of each stretch, the first and last point and the "
                    "lowest and highest of each name are kept"
                )
            if self._hurry.wait(SEND_S):
                self._hurry.clear()

    def _report(self, points: Sequence[Point]) -> bool:
        """False when sending is over."""
        told = [point._asdict() for point in points]
        try:
            patiently(lambda: self._api.metrics(self._writer, told), self._gone, longest_s=PAUSE_AT_THE_END_S)
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


def skimmed(texts: Sequence[Text]) -> List[Text]:
    """Of many lines: all that may tell more than a point, the last one, and some of the others."""
    every = len(texts) // _SAMPLES + 1
    last = len(texts) - 1
    return [
        text
        for index, text in enumerate(texts)
        if index % every == 0 or index == last or any(mark in text[0] for mark in _MARKS)
    ]


def _numbers(record: Dict[str, Any]) -> Dict[str, float]:
    numbers: Dict[str, float] = {}
    for name, value in record.items():
        if name in _RESERVED or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if len(name) > LONGEST_NAME:
            continue
        try:
            number = float(value)
        except OverflowError:
            continue
        if math.isfinite(number) and len(numbers) < MOST_VALUES:
            numbers[name.replace("\0", "").encode("utf-8", "replace").decode()] = number
    return numbers


def _facts(file: BinaryIO) -> "tuple[int, int]":
    facts = os.fstat(file.fileno())
    return facts.st_dev, facts.st_ino


def _excerpt(text: bytes) -> str:
    return repr(text[:80].decode("utf-8", "replace"))
