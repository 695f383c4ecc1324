"""A planned move: a job goes from its run (the source) to a second one that was prepared for it (the target)."""

from __future__ import annotations

from enum import StrEnum


class MoveState(StrEnum):
    PREPARING = "preparing"  # the target fetches what it needs, the source trains
    SAVING = "saving"  # the target is prepared, the source was asked for its final checkpoint
    PROMOTING = "promoting"  # the job is the target's; it has not started its code, or the source has not left
    DONE = "done"
    ABANDONED = "abandoned"  # the target was called off


OPEN_MOVE_STATES = frozenset({MoveState.PREPARING, MoveState.SAVING, MoveState.PROMOTING})

FIRST_BACK_OFF_MS = 30_000
MOST_BACK_OFF_MS = 3_600_000


def back_off_ms(failed: int) -> int:
    """How long a job is left where it is after a target failed; `failed`: how often that has happened to it before."""
    return min(MOST_BACK_OFF_MS, FIRST_BACK_OFF_MS << min(failed, 20))
