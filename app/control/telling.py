"""Whom of a crowd a decision tells why it waits: who is new at once, all others in turns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from app.core.model.snapshot import JobView

CROWD = 2_000  # so many unfinished jobs are all told in every decision
_AT_ONCE = 500
_PAUSE_MS = 1_000
_LAST_ID = chr(0x10FFFF)


class Telling:
    """Of one loop. Without it every decision would cost what all waiting jobs cost, and not what has changed."""

    def __init__(self) -> None:
        self._told_to = ""  # the last id of the present turn
        self._newest = _LAST_ID
        self._not_before_ms = 0

    def begin(self, jobs: Sequence[JobView], now_ms: int) -> tuple[tuple[str, str], ...]:
        """Ranges of ids for `PolicyConfig.told`; empty: everybody is told. `jobs` are in the order of their ids."""
        if len(jobs) <= CROWD:
            self._newest, self._told_to = _LAST_ID, ""
            return ()
        ranges = []
        if self._newest < jobs[-1].job_id:
            first = bisect_right(jobs, self._newest, key=lambda job: job.job_id)
            ranges.append((jobs[first].job_id, _LAST_ID))
        self._newest = jobs[-1].job_id
        if now_ms >= self._not_before_ms:
            ranges.append(self._turn(jobs))
            self._not_before_ms = now_ms + _PAUSE_MS
        return tuple(ranges) or ((_LAST_ID, _LAST_ID),)

    def wake_ms(self) -> int | None:
        """When those whose turn is next are told, if nothing else happens; None while there is no crowd."""
        return None if self._newest == _LAST_ID else self._not_before_ms

    def _turn(self, jobs: Sequence[JobView]) -> tuple[str, str]:
        first = bisect_right(jobs, self._told_to, key=lambda job: job.job_id)
        first %= len(jobs)  # after the last comes the first
        last = min(first + _AT_ONCE, len(jobs)) - 1
        self._told_to = "" if last == len(jobs) - 1 else jobs[last].job_id
        return jobs[first].job_id, jobs[last].job_id
