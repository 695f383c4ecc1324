"""A machine whose service is gone for good must end by itself: nobody else can, and it is paid for.

How long it hears nothing is measured on a clock that stands still while the machine sleeps.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Callable

ENDS = "ALLPASS_AGENT_ENDS"  # a URL with {VARIABLES}, a space, and the variable that holds this machine's own key
_TRIES = 6
_PAUSE_S = 4.0  # companies limit how often they are asked for an end
_TIMEOUT_S = 20.0
_GONE = (404, 410)


class Solitude:
    """`idle_s` without an answer are too long for a machine on which nothing trains any more, `training_s` for any."""

    def __init__(self, idle_s: float, training_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._idle_s, self._training_s, self._now_s = idle_s, training_s, now_s
        self._heard_s = self._trained_s = now_s()

    @property
    def look_every_s(self) -> float:
        """Often enough for limits to be kept within a tenth."""
        return min(10.0, max(0.05, min(self._idle_s, self._training_s) / 10))

    def heard(self) -> None:
        """The service has answered."""
        self._heard_s = self._now_s()

    def is_over(self, *, trains: bool) -> bool:
        """Whether nobody will come back. To be asked often."""
        now_s = self._now_s()
        if trains:
            self._trained_s = now_s
            return now_s - self._heard_s > self._training_s
        return now_s - max(self._heard_s, self._trained_s) > self._idle_s


def end_machine() -> bool:
    """Ask the company to end this machine, with the key that the machine itself was given and that opens nothing else.

    False where there is no such key, or no answer: then the container ends with us, and what is left of the machine
    when its lease does.
    """
    url, _, name = os.environ.get(ENDS, "").partition(" ")
    key = os.environ.get(name, "")
    if not key:
        return False
    import urllib.error  # hardly ever needed
    import urllib.request

    try:
        whole = url.format(**os.environ)
    except (LookupError, ValueError):  # no such variable here: it is another company's machine
        return False
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(  # noqa: S310 - http(s), as whoever rented the machine wrote
        whole, data=b"{}", method="DELETE", headers=headers
    )
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE_S)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310
                return True
        except urllib.error.HTTPError as error:
            if error.code in _GONE:
                return True
            print(f"allpass agent: this machine could not be ended: {error.code}", file=sys.stderr)
        except (OSError, ValueError) as error:
            print(f"allpass agent: this machine could not be ended: {type(error).__name__}", file=sys.stderr)
    return False
