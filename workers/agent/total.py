"""The step that a training ends with, as its code says it, and how often it may say another one."""

from __future__ import annotations

import time
from typing import Callable, Optional

_FIRST_PAUSE_S = 60.0
_LONGEST_PAUSE_S = 6 * 3600.0


class TotalSteps:
    """The first one counts at once, another one after a minute, each further one after twice as long: machines are
    rented by what is left of a job, and code that changes its mind with each step must not have them come and go."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._heard: Optional[int] = None
        self._believed: Optional[int] = None
        self._pause_s = _FIRST_PAUSE_S
        self._not_before_s = 0.0

    def hear(self, told: Optional[int]) -> None:
        """The newest word counts, once its time has come."""
        self._heard = self._heard if told is None else told

    @property
    def newest(self) -> int:
        """What was said last, believed or not; 0: nothing."""
        return self._heard or 0

    @property
    def believed(self) -> Optional[int]:
        if self._heard == self._believed:
            return self._believed
        now_s = self._monotonic_s()
        if self._believed is None:
            self._not_before_s = now_s + self._pause_s
        elif now_s < self._not_before_s:
            return self._believed
        else:
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self._not_before_s = now_s + self._pause_s
        self._believed = self._heard
        return self._believed
