"""The cheapest jobs on one node that free what is missing: exact, by a table over what is freed so far.

A node of eight GPUs has nine states. With processors and memory beside them a state is a vector, cut off at what is
missing; tables are bounded by MOST_STATES, beyond which the dearest states are dropped and the answer is a cover that
may not be the cheapest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import add

from app.core.eviction.amounts import Amounts, plus

MOST_STATES = 2_000
_State = tuple[int, int, int, tuple[str, ...], tuple["GiveUp", ...]]  # the fields of a Cover


@dataclass(frozen=True, slots=True)
class GiveUp:
    """One thing that a job could give on this node, with its cost now. `shrink`: which of its ways to shrink this is;
    None where it ends."""

    job_id: str
    frees: Amounts
    cost_gpu_us: int
    shrink: int | None = None


@dataclass(frozen=True, slots=True)
class Cover:
    """Options that free enough. Covers are compared by what ending jobs wastes, then by what shrinking does, then by
    how many take part, then by name: so nobody is ended where shrinking is enough."""

    ended_gpu_us: int
    shrunk_gpu_us: int
    count: int
    job_ids: tuple[str, ...]
    options: tuple[GiveUp, ...]

    @property
    def cost_gpu_us(self) -> int:
        return self.ended_gpu_us + self.shrunk_gpu_us


def all_of(options: Sequence[GiveUp]) -> Cover:
    """All of these, which are jobs that end."""
    cost = sum(one.cost_gpu_us for one in options)
    return Cover(cost, 0, len(options), tuple(one.job_id for one in options), tuple(options))


def cheapest_cover(options: Iterable[GiveUp], missing: Amounts) -> Cover | None:
    """The cheapest options, at most one of each job, that together free what is missing; None where all do not.

    Whether there is a cover is always answered rightly, even where states are dropped. Raises ValueError for an option
    that frees less than nothing, or costs less.
    """
    zero = tuple(0 for _ in missing)
    states: dict[Amounts, _State] = {zero: (0, 0, 0, (), ())}
    most = zero
    for choices in _by_job(options):
        reached = dict(states)
        for amounts, (ended, shrunk, count, job_ids, taken) in states.items():
            for one in choices:
                now = tuple(map(min, map(add, amounts, one.frees), missing))
                if now == amounts:
                    continue
                cost = one.cost_gpu_us
                sums = (ended + cost, shrunk) if one.shrink is None else (ended, shrunk + cost)
                state = (*sums, count + 1, (*job_ids, one.job_id), (*taken, one))
                if now not in reached or state[:4] < reached[now][:4]:
                    reached[now] = state
        most = tuple(map(min, plus(most, _largest(choices)), missing))
        states = reached if len(reached) <= MOST_STATES else _bounded(reached, most)
    return Cover(*states[missing]) if missing in states else None


def _by_job(options: Iterable[GiveUp]) -> list[list[GiveUp]]:
    jobs: dict[str, list[GiveUp]] = {}
    for option in options:
        if min(option.frees) < 0 or option.cost_gpu_us < 0:
            raise ValueError(f"{option.job_id} frees {option.frees} at {option.cost_gpu_us}: neither can be below zero")
        jobs.setdefault(option.job_id, []).append(option)
    return [jobs[one] for one in sorted(jobs)]


def _largest(choices: Sequence[GiveUp]) -> Amounts:
    """What the job frees at most: ending it frees all that any of its options does."""
    return max((one.frees for one in choices), key=lambda frees: (sum(frees), frees))


def _bounded(states: dict[Amounts, _State], most: Amounts) -> dict[Amounts, _State]:
    """The cheapest states, and the one in which every job has given the most."""
    kept = sorted(states, key=lambda amounts: (states[amounts][:4], amounts))[: MOST_STATES - 1]
    return {amounts: states[amounts] for amounts in (*kept, *([most] if most in states else []))}
