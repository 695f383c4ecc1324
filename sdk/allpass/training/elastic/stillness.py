"""Whether one of the processes of a training on several GPUs hangs: what the first process sees of the others.

One that is gone is noticed at once (`gang`). One that is there and does nothing, because its GPU or its disk does not
answer, would have all others wait for as long as somebody pays. Each process counts how often it has come to where all
meet, in memory that they share; who has not come for far longer than any part ever took hangs.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

LEAST_S = 600.0  # a part is not said to hang before that: kernels are compiled, and disks are slow now and then
TIMES = 20.0  # nor before so many times what the longest one took
JOINING_S = 1800.0  # to load what is trained, until all have met for the first time
_SLOT = struct.Struct("@Q")


class Doing(str, Enum):
    """What the first process does that the others do as well."""

    PART = "part"  # its own part of a round
    MEETING = "meeting"  # waits for the others, or passes numbers on to them


class Presence:
    """What one process of `count` does at the moment, and how often each has come to where all meet: numbers in a file
    that they all map, of which each writes its own alone."""

    def __init__(self, file: Path, own: int, count: int) -> None:
        """Raises OSError where the file cannot be made."""
        with file.open("a+b") as opened:
            # Not only made so long: whoever writes to what a full disk has no room for is killed by SIGBUS.
            os.posix_fallocate(opened.fileno(), 0, count * _SLOT.size)
            self._shared = mmap.mmap(opened.fileno(), count * _SLOT.size)
        self._own = own
        self.count = count
        self.doing: Doing | None = None

    @property
    def arrived(self) -> tuple[int, ...]:
        """How often, by rank."""
        return tuple(_SLOT.unpack_from(self._shared, rank * _SLOT.size)[0] for rank in range(self.count))

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """While it does its part."""
        self.doing = Doing.PART
        try:
            yield
        finally:
            self.doing = None

    @contextlib.contextmanager
    def meeting(self) -> Iterator[None]:
        """While it waits for the others."""
        _SLOT.pack_into(self._shared, self._own * _SLOT.size, self.arrived[self._own] + 1)
        self.doing = Doing.MEETING
        try:
            yield
        finally:
            self.doing = None


@dataclass
class Stillness:
    """For how long nothing has moved."""

    _seen: tuple[Doing | None, tuple[int, ...]] = (None, ())
    _still_s: float = 0.0
    _longest_s: float = 0.0

    def look(self, doing: Doing | None, arrived: Sequence[int], passed_s: float) -> str | None:
        """Why the training is given up, in words; None while there is no reason. `arrived`: by rank. `passed_s`: since
        the look before."""
        seen = doing, tuple(arrived)
        if seen != self._seen:
            if self._seen[0] is not None and self._has_met(self._seen[1]):
                self._longest_s = max(self._longest_s, self._still_s)
            self._seen, self._still_s = seen, 0.0
            return None
        self._still_s += passed_s
        if doing is None or self._still_s < self._patience_s(arrived):
            return None
        return f"{self.since}: {_who(arrived)}"

    def _patience_s(self, arrived: Sequence[int]) -> float:
        return max(LEAST_S, TIMES * self._longest_s) if self._has_met(arrived) else JOINING_S

    @staticmethod
    def _has_met(arrived: Sequence[int]) -> bool:
        return min(arrived, default=0) > 0

    @property
    def longest_s(self) -> float:
        """Of all that nothing moved in, and that was over then: as long as the longest part took."""
        return self._longest_s

    @property
    def since(self) -> str:
        """For how long, in words."""
        before = f", where {self._longest_s:.3g} s were the longest before" if self._longest_s else ""
        return f"nothing has moved for {self._still_s:.0f} s{before}"


def late(arrived: Sequence[int]) -> list[int]:
    """The ranks that have not come where others are."""
    return [rank for rank, times in enumerate(arrived) if times < max(arrived)]


def _who(arrived: Sequence[int]) -> str:
    found = [str(rank) for rank in late(arrived)]
    if not found:
        return f"none of the {len(arrived)} processes gets on"
    if len(found) == 1:
        return f"rank {found[0]} of {len(arrived)} hangs"
    return f"ranks {', '.join(found)} of {len(arrived)} hang"
