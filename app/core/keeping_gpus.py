"""Whether the training of an elastic job keeps the GPUs that it began with, whatever it was to do (ADR 0106). Pure.

Nothing is taken from such a training: a GPU is free when it has been left, and code that never says that it has left
one goes on holding it. What can be done is to say so, to ask it no more, and to look elsewhere for who waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from app.core.resizing import GpusHeld, GpusTold, is_settled

SPOKEN_BY_MS = 60_000  # code that can change its GPUs says so before its first step
SILENT_MS = 600_000  # where nobody says which step it is at either
FOLLOWED_BY_MS = 600_000  # GPUs change hands between two steps, and some steps are long
SAVED_BY_MS = 6 * 3_600_000  # of code that changes them after its next save; some save once in hours


class KeepsGpus(StrEnum):
    SILENT = "silent"  # its code has never said which GPUs it uses
    NOT_LEFT = "not_left"  # it was to leave some, and has not
    NOT_USED = "not_used"  # it holds more than it uses, and has not begun on them


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """A run of an elastic job, or of one whose owner has asked for another number. `told` None: it has said nothing.
    `wanted_ms`: since when it is to use what it is to use. `has_stepped`: it has taken a step since it began."""

    run_id: str
    job_id: str
    held: GpusHeld
    told: GpusTold | None
    running_ms: int
    has_stepped: bool
    wanted_ms: int


def kept(run: WatchedRun, now_ms: int) -> KeepsGpus | None:
    """None: it follows, or may yet."""
    if run.told is None:
        least_ms = SPOKEN_BY_MS if run.has_stepped else SILENT_MS
        return KeepsGpus.SILENT if now_ms - run.running_ms >= least_ms else None
    if is_settled(run.held, run.told) or now_ms - run.wanted_ms < followed_by_ms(run.told):
        return None
    return KeepsGpus.NOT_LEFT if set(run.held.indices) > set(run.held.in_use) else KeepsGpus.NOT_USED


def followed_by_ms(told: GpusTold) -> int:
    """For how long it is waited for."""
    return SAVED_BY_MS if told.after_save else FOLLOWED_BY_MS
