"""How long anything is believed to last. Durations come from users' files, from their templates and from the clocks of
rented machines: any of them may be wrong, and none may be so large that sums over all jobs leave 64 bits."""

from __future__ import annotations

import math

LONGEST_MS = 3650 * 86_400_000
"""Ten years: the furthest deadline. A hundred thousand jobs of 64 GPUs each that last so long are still countable."""
_LEAST_STEP_MS = 1e-6


def believable_ms(duration_ms: float) -> int:
    """The duration as a whole number of milliseconds, at most ten years either way; 0 for what is no number."""
    if math.isnan(duration_ms):
        return 0
    return round(max(-LONGEST_MS, min(LONGEST_MS, duration_ms)))


def believable_step_ms(step_ms: float) -> float | None:
    """The time of a step within what one can take; None for what is no time at all."""
    if math.isnan(step_ms) or step_ms <= 0:
        return None
    return float(max(_LEAST_STEP_MS, min(LONGEST_MS, step_ms)))
