"""The lines of a metrics file: found as it grows, and judged, many at a time."""

from __future__ import annotations

import json
import os
import random
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from workers.agent.facts import (
    facts_of,
    gpus_of,
    libraries_of,
    link_of,
    profile_of,
    refused_of,
    saves_of,
    stops_together_of,
    tokens_before,
    total_of,
    untracked_of,
    unusable_of,
    watched_of,
)
from workers.agent.files import Fence

MOST_VALUES = 100
LONGEST_NAME = 200
LARGEST_VALUE = 1e100
LONGEST_LINE_BYTES = 1024 * 1024
READ_BYTES = 1024 * 1024
HIGHEST_STEP = 2**53
PART = "checkpoint_part"
_AT_ONCE = 1000  # lines
_SAMPLES = 200  # of a block that is looked through
_MARKS = (b'"checkpoint"', b'"training"', b'"checkpoint_part"')
_NUMBERS = (int, float)  # and not bool
_NOTHING: Dict[str, Any] = {}
_BETWEEN = random.getrandbits(60)

Text = Tuple[bytes, int]  # a line, and where it begins in the file


class MetricLine(NamedTuple):
    """One good line. `offset`: where it begins in the file. `training`: what the code tells of its training; `profile`:
    what a profile run found; `tokens_before`: what the job had read when this run began;
    `watched`: how a job does that waits for this one's weights; `left_out`: why some of the line's values are not
    there, in words; `saves`: the code says that it saves and leaves when it is asked to; `total_steps`: the step that
    it ends with, as it says; `link`: one to be shown with the job, by its name; `refused`: why what it saves by itself
    is no checkpoint; `libraries`: the versions that it computes with; `unusable`: why it cannot use the GPUs that it
    was given; `untracked`: why a tracker does not get its metrics; `gpus`: which of those it uses, leaves and cannot
    use; `is_part`: of the checkpoint that it names this machine has written a part;
    `stops_together`: all machines of the job stop after the same step when any is asked to."""

    step: int
    values: Dict[str, float]
    checkpoint: Optional[str]
    offset: int
    training: Dict[str, Any] = _NOTHING
    profile: Dict[str, Any] = _NOTHING
    tokens_before: Optional[int] = None
    watched: Dict[str, Any] = _NOTHING
    left_out: Tuple[str, ...] = ()
    saves: bool = False
    total_steps: Optional[int] = None
    link: Dict[str, str] = _NOTHING
    refused: str = ""
    libraries: Dict[str, str] = _NOTHING
    unusable: str = ""
    untracked: str = ""
    gpus: Dict[str, Any] = _NOTHING
    is_part: bool = False
    stops_together: bool = False


class BadLine(NamedTuple):
    """A line that is none, and why."""

    text: bytes
    reason: str


def parse_all(texts: Sequence[Text]) -> "Iterator[Union[MetricLine, BadLine]]":
    """What each of them is, in order."""
    for start in range(0, len(texts), _AT_ONCE):
        some = texts[start : start + _AT_ONCE]
        records = _records([text for text, _ in some])
        for index, (text, offset) in enumerate(some):
            try:
                yield parse(text, offset) if records is None else _line(records[index], offset)
            except ValueError as error:
                yield BadLine(text, str(error))


def parse(text: bytes, offset: int) -> MetricLine:
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


def _line(record: Any, offset: int) -> MetricLine:
    if not isinstance(record, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - a fault of the line, not of a caller
    step = record.get("step")
    if type(step) is not int or not 0 <= step < HIGHEST_STEP:  # True is none
        raise ValueError('it has no "step" that is a whole number from 0 on')
    checkpoint, is_part = record.get("checkpoint"), False
    if checkpoint is None and isinstance(record.get(PART), str):
        checkpoint, is_part = record[PART], True
    if checkpoint is not None and (not isinstance(checkpoint, str) or not checkpoint):
        raise ValueError('its "checkpoint" is not the name of a folder')
    told = record.get("training")
    values, left_out = _numbers(record)
    if told is None:
        return MetricLine(step, values, checkpoint, offset, left_out=left_out, is_part=is_part)
    return MetricLine(
        step,
        values,
        checkpoint,
        offset,
        facts_of(told),
        profile_of(told),
        tokens_before(told),
        watched_of(told),
        left_out,
        saves_of(told),
        total_of(told),
        link_of(told),
        refused_of(told),
        libraries_of(told),
        unusable_of(told),
        untracked_of(told),
        gpus_of(told),
        is_part,
        stops_together_of(told),
    )


class MetricTail:
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


def skimmed(texts: Sequence[Text]) -> List[Text]:
    """Of many lines: all that may tell more than a point, the last one, and some of the others."""
    every = len(texts) // _SAMPLES + 1
    last = len(texts) - 1
    return [
        text
        for index, text in enumerate(texts)
        if any(mark in text[0] for mark in _MARKS) or index % every == 0 or index == last
    ]


def _numbers(record: Dict[str, Any]) -> "Tuple[Dict[str, float], Tuple[str, ...]]":
    """The values of a line that can be kept, and why others are left out."""
    numbers: Dict[str, float] = {}
    left_out: Tuple[str, ...] = ()
    for name, value in record.items():
        if type(value) not in _NUMBERS or name == "step":
            continue
        if not abs(value) <= LARGEST_VALUE:  # nor is NaN
            left_out = (*left_out, "values are left out that are no numbers, or larger than 1e100")
        elif len(numbers) >= MOST_VALUES:
            left_out = (*left_out, f"only {MOST_VALUES} values of a step are kept")
        else:
            if len(name) > LONGEST_NAME:
                left_out = (*left_out, f"names of values are cut to {LONGEST_NAME} characters")
            numbers[_plain(name)] = float(value)
    return numbers, tuple(dict.fromkeys(left_out)) if left_out else ()


@lru_cache(maxsize=1000)
def _plain(name: str) -> str:
    """As PostgreSQL can keep it."""
    return name.replace("\0", "").encode("utf-8", "replace").decode()[:LONGEST_NAME]


def _facts(file: BinaryIO) -> "tuple[int, int]":
    facts = os.fstat(file.fileno())
    return facts.st_dev, facts.st_ino


def excerpt(text: bytes) -> str:
    return repr(text[:80].decode("utf-8", "replace"))
