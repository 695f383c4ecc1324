"""What a machine's clock is worth: hours off, on some of them.

Times that a machine tells are of its own clock. Between two of one machine nothing has to be known; beside our own
times, or those of another machine, they mean nothing until they are put right.
"""

from __future__ import annotations

TOLERATED_MS = 5_000  # a call may take so long to arrive, and tells no more than this of the clock that it names
LAST_MS = 253_402_300_799_999  # of the calendar


def behind_ms(heard_ms: int, told_ms: object) -> int:
    """What has to be added to a machine's times, when at `heard_ms` its clock said `told_ms`: whole seconds.

    0 for a clock that is right, as far as can be told, and for one that told nothing that could be a time.
    """
    if not isinstance(told_ms, int) or isinstance(told_ms, bool) or not 0 <= told_ms <= LAST_MS:
        return 0
    off_ms = heard_ms - told_ms
    return 0 if abs(off_ms) <= TOLERATED_MS else off_ms // 1000 * 1000


def put_right(at_ms: int, behind: int) -> int:
    """A machine's time as ours; within the calendar, whatever was told."""
    return min(LAST_MS, max(0, at_ms + behind))
