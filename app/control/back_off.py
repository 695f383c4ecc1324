"""How long to wait before the next try."""

from __future__ import annotations

_FIRST_MS = 1_000
_LONGEST_MS = 60_000


def back_off_ms(attempts: int) -> int:
    """Doubles from one second with each attempt made so far, up to a minute."""
    return min(_LONGEST_MS, _FIRST_MS << min(max(attempts, 1) - 1, 16))
