"""Whether a job that would miss its deadline goes on with more GPUs of another machine (ADR 0122). Pure.

On its own machine it grows by itself, on GPUs that are idle. Where that is not enough a larger machine is worth its
price if the job is in time there, and not otherwise: what is late all the same stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.core.elastic.profile import SpeedProfile
from app.core.elastic.scaling import gain_per_dollar

LATE = 1.05  # a prediction that is past the deadline by less is as good as in time
SAVE_S = 60.0  # to save, to leave, and to begin


@dataclass(frozen=True, slots=True)
class SizedMachine:
    """`gpus`: of the job there; `micros_per_h`: of the whole machine; `arrival_s`: until the job trains there."""

    gpus: int
    micros_per_h: int
    arrival_s: float


@dataclass(frozen=True, slots=True)
class DeadlineGrowth:
    """`late_s`: by how much it would miss its deadline as it is; `early_s`: by how much it is before it there."""

    to: SizedMachine
    late_s: float
    early_s: float


def grow_for_deadline(
    profile: SpeedProfile, gpus: int, remaining_s: float, left_s: float, now_micros_per_h: int,
    machines: Iterable[SizedMachine], save_s: float = SAVE_S,
) -> DeadlineGrowth | None:  # fmt: skip
    """Of the machines on which the job is in time, the one that brings most speed for each dollar more; of equals the
    smallest. `remaining_s`: at its present size `gpus`; `left_s`: until its deadline; `save_s`: while it does nothing,
    0 of a job that has not begun. None where it is in time as it is, or nowhere. Only sizes whose speed was measured,
    or is predicted, are paid for."""
    if left_s <= 0 or remaining_s <= LATE * left_s or not is_known(profile, gpus):
        return None
    best: tuple[tuple[float, int], DeadlineGrowth] | None = None
    for one in machines:
        if one.gpus <= gpus or not is_known(profile, one.gpus):
            continue
        gain = profile.speed(one.gpus) / profile.speed(gpus)
        early_s = left_s - save_s - one.arrival_s - remaining_s / gain
        if gain <= 1 or early_s < 0:
            continue
        worth = gain_per_dollar(gain - 1, max(0, one.micros_per_h - now_micros_per_h))
        rank = (worth, -one.gpus)
        if best is None or rank > best[0]:
            best = (rank, DeadlineGrowth(one, remaining_s - left_s, early_s))
    return None if best is None else best[1]


def is_known(profile: SpeedProfile, gpus: int) -> bool:
    return (gpus in profile.measured or gpus in profile.predicted) and profile.speed(gpus) > 0
