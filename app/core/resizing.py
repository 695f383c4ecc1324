"""How many of a machine's GPUs a training uses, while it goes on: what it may be given, and when others may have what
it leaves (ADR 0096).

A GPU is the run's from the moment it is promised to it until its training has left it. So no GPU is ever two runs',
whichever of those who change it, use it and give it out is late.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

MOST_GPUS = 8  # of one training that changes them
LEAST = "gpus_least"  # of a job's stored resources: it asked for a range, and this is the fewest it may be left with


@dataclass(frozen=True, slots=True)
class GpusTold:
    """What a training has said of the GPUs of its machine, by their numbers: those that it uses, those that its
    processes are about to leave, and those that no process of it could begin on.

    `pause_ms`: for how long the last change of them had no step taken. Of one that is restarted for it (ADR 0129):
    `kept`, why it keeps what it uses from now on; `after_save`, that it changes them only right after its next save."""

    used: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    kept: str | None = None
    pause_ms: int | None = None
    after_save: bool = False


@dataclass(frozen=True, slots=True)
class GpusHeld:
    """GPUs that are a run's, in their order. The first `wanted` of them are those that its training is to use; the very
    first one is where it was begun, and stays."""

    indices: tuple[int, ...]
    wanted: int

    @property
    def in_use(self) -> tuple[int, ...]:
        return self.indices[: self.wanted]


def resized(held: GpusHeld, wanted: int, node_gpus: int, others: Collection[int]) -> GpusHeld | None:
    """What the run holds once its training is to use `wanted` GPUs: more at once, the lowest free ones of the machine
    first; fewer when it has left them. None where the machine has not so many that are free.

    `others`: what other runs hold there.
    """
    free = [index for index in range(node_gpus) if index not in held.indices and index not in others]
    more = max(0, wanted - len(held.indices))
    if more > len(free):
        return None
    return GpusHeld((*held.indices, *free[:more]), wanted)


def after_told(held: GpusHeld, told: GpusTold) -> GpusHeld:
    """What the run goes on holding: what it is to use and could begin on, and what it has not left yet."""
    usable = [one for one in held.in_use if one not in told.refused or one in told.used or one == held.indices[0]]
    busy = {*told.used, *told.leaving}
    rest = [one for one in held.indices if one not in usable and one in busy]
    return GpusHeld((*usable, *rest), len(usable))


def kept_as_told(held: GpusHeld, told: GpusTold) -> GpusHeld:
    """What a run holds whose training keeps what it uses: that, and no wish for anything else. Its first GPU is among
    them, whatever is said."""
    kept = tuple(one for one in held.indices if one in {*told.used, *told.leaving, held.indices[0]})
    return GpusHeld(kept, len(kept))


def is_settled(held: GpusHeld, told: GpusTold) -> bool:
    """Whether the training uses just what it is to use, and holds nothing else. Before that nothing else is asked of
    it: a wish that is taken back before it was read would never be confirmed, and what it was about could be loading
    there already."""
    return set(told.used) == set(held.in_use) == set(held.indices) and not told.leaving


def in_words(indices: Collection[int]) -> str:
    """E.g. "3 GPUs (0, 1, 2)"."""
    numbers = ", ".join(map(str, sorted(indices)))
    return f"{len(indices)} GPU{'s' * (len(indices) != 1)} ({numbers})"
