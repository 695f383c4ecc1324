"""Whether a range goes on on a machine of another size though no deadline asks for it (ADR 0125). Pure.

Smaller: once nothing presses any more, where what the rest costs there, with both machines paid while it moves, is so
much less that the saving is worth the move. Larger: on GPUs of a pool of its team that nobody waits for, where it is
done so much earlier. Both are asked of speeds that are known, never of guesses.

A job that has gone to a smaller machine is before its deadline there by a quarter of what is left, and a prediction has
to be past the deadline for a job to go to a larger one. So as long as nothing else changes nobody goes back to where he
came from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.core.elastic.deadlines import SizedMachine, is_known
from app.core.elastic.profile import SpeedProfile
from app.core.elastic.scaling import HYSTERESIS, is_worth_resizing

SPARE = 1.25  # times what is left there, until the deadline: predictions are believed in by so much
CHEAPER = (
    0.9  # of what its work costs where it is; and of what a GPU costs, from which on runs are moved by price alone
)


@dataclass(frozen=True, slots=True)
class MoveTimes:
    """`pause_s`: while a job saves on its machine and loads on the next one, and both are paid. `prepare_s`: while the
    next one is paid and the job trains on where it is. Both besides the time that a machine takes to arrive."""

    pause_s: float
    prepare_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SmallerMachine:
    """`saved_micros`: by how much less the rest of the job costs there, the move included."""

    to: SizedMachine
    saved_micros: int


@dataclass(frozen=True, slots=True)
class LargerMachine:
    """`sooner_s`: by how much earlier the job is done there, the move included."""

    to: SizedMachine
    sooner_s: float


def smaller_machine(
    profile: SpeedProfile, now: SizedMachine, remaining_s: float, left_s: float | None, times: MoveTimes,
    machines: Iterable[SizedMachine],
) -> SmallerMachine | None:  # fmt: skip
    """Of the smaller machines on which the job is in time with time to spare, the one that saves most; of equals the
    larger one. `now`: the machine that it has for itself alone, and its GPUs there; `remaining_s`: on these; `left_s`:
    until the deadline that its owner gave, None without one. None where none saves as much as the move costs, beside
    what that costs."""
    best: SmallerMachine | None = None
    for one in sorted(machines, key=lambda it: -it.gpus):
        if one.gpus >= now.gpus or not _are_known(profile, now.gpus, one.gpus):
            continue
        saved_micros = _saved_micros(profile, now, one, remaining_s, left_s, times)
        if saved_micros > (0 if best is None else best.saved_micros):
            best = SmallerMachine(one, saved_micros)
    return best


def _saved_micros(
    profile: SpeedProfile, now: SizedMachine, to: SizedMachine, remaining_s: float, left_s: float | None,
    times: MoveTimes,
) -> int:  # fmt: skip
    """By how much less the rest of the job costs on the smaller machine; 0 where it is not to go there."""
    until_s = to.arrival_s + times.prepare_s
    rest_s, slower = remaining_s - until_s, profile.speed(now.gpus) / profile.speed(to.gpus)
    if rest_s <= 0 or to.micros_per_h * slower > CHEAPER * now.micros_per_h:
        return 0
    if CHEAPER * to.micros_per_h / to.gpus >= now.micros_per_h / now.gpus:
        return 0  # a GPU of its machine costs so much less that it would be moved back there
    if left_s is not None and SPARE * (until_s + rest_s * slower) + times.pause_s > left_s:
        return 0
    cost = now.micros_per_h * times.pause_s + to.micros_per_h * (times.pause_s + until_s)
    gained = rest_s * (now.micros_per_h - to.micros_per_h * slower)
    return int((gained - cost) / 3600) if gained > HYSTERESIS * cost else 0


def larger_machine(
    profile: SpeedProfile, gpus: int, remaining_s: float, times: MoveTimes, machines: Iterable[SizedMachine]
) -> LargerMachine | None:
    """Of the larger machines, on which nothing is paid by the hour that others could have, the one on which the job is
    done first; of equals the smallest. None where it is not done so much earlier that the pause is worth it."""
    best: LargerMachine | None = None
    for one in sorted(machines, key=lambda it: it.gpus):
        if one.gpus <= gpus or not _are_known(profile, gpus, one.gpus):
            continue
        rest_s = remaining_s - one.arrival_s - times.prepare_s
        before, after = profile.speed(gpus), profile.speed(one.gpus)
        if rest_s <= 0 or not is_worth_resizing(before, after, rest_s, times.pause_s):
            continue
        sooner_s = rest_s * (1 - before / after) - times.pause_s
        if best is None or sooner_s > best.sooner_s:
            best = LargerMachine(one, sooner_s)
    return best


def _are_known(profile: SpeedProfile, now: int, then: int) -> bool:
    return is_known(profile, now) and is_known(profile, then)
