"""What a merge has been worth, once its jobs have ended."""

from __future__ import annotations

from collections.abc import Sequence

LEAST, MOST = -0.9, 3.0


def seen_gain(taken: Sequence[int], alone: Sequence[float | None]) -> float | None:
    """The share of steps that was saved: of the companion in turn, of both side by side (equation 4), within bounds
    that one odd pair cannot move the line from score to gain by much.

    `taken`: steps of each job whose steps count; `alone`: what jobs like it have taken alone. None: that is not known.
    """
    known = [steps for steps in alone if steps is not None and steps > 0]
    if not taken or min(taken) <= 0 or len(known) < len(alone):
        return None
    return min(MOST, max(LEAST, sum(known) / sum(taken) - 1))
