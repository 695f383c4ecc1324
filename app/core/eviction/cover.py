"""The cheapest jobs on one node that free what is missing: exact, by a table over what is freed so far.

A node of eight GPUs has nine states. With processors and memory beside them a state is a vector, cut off at what is
missing; tables are bounded by MOST_STATES, beyond which the dearest states are dropped and the answer is a cover that
may not be the cheapest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from app.core.eviction.amounts import Amounts, plus

MOST_STATES = 2_000


@dataclass(frozen=True, slots=True)
class GiveUp:
    """One thing that a job could give on this node, with its cost now. `shrink`: which of its ways to shrink this is;
    None where it ends."""

    job_id: str
    frees: Amounts
    cost_gpu_us: int
    shrink: int | None = None


@dataclass(frozen=True, order=True, slots=True)
class Cover:
    """Options that free enough. Covers are compared by what ending jobs wastes, then by what shrinking does, then by
    how many take part, then by name: so nobody is ended where shrinking is enough."""

    ended_gpu_us: int
    shrunk_gpu_us: int
    count: int
    job_ids: tuple[str, ...]
    options: tuple[GiveUp, ...] = field(compare=False)

    @property
    def cost_gpu_us(self) -> int:
        return self.ended_gpu_us + self.shrunk_gpu_us

    def with_option(self, option: GiveUp) -> Cover:
        cost, ends = option.cost_gpu_us, option.shrink is None
        return Cover(
            self.ended_gpu_us + cost * ends,
            self.shrunk_gpu_us + cost * (not ends),
            self.count + 1,
            (*self.job_ids, option.job_id),
            (*self.options, option),
        )


NOTHING = Cover(0, 0, 0, (), ())


def cheapest_cover(options: Iterable[GiveUp], missing: Amounts) -> Cover | None:
    """The cheapest options, at most one of each job, that together free what is missing; None where all do not.

    Whether there is a cover is always answered rightly, even where states are dropped.
    """
    zero = tuple(0 for _ in missing)
    states: dict[Amounts, Cover] = {zero: NOTHING}
    most = zero
    for choices in _by_job(options):
        reached = dict(states)
        for amounts, cover in states.items():
            for option in choices:
                now = tuple(min(a + b, m) for a, b, m in zip(amounts, option.frees, missing, strict=True))
                if now == amounts:
                    continue
                dearer = cover.with_option(option)
                known = reached.get(now)
                if known is None or dearer < known:
                    reached[now] = dearer
        most = tuple(map(min, plus(most, _largest(choices)), missing))
        states = reached if len(reached) <= MOST_STATES else _bounded(reached, most)
    return states.get(missing)


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


def _bounded(states: dict[Amounts, Cover], most: Amounts) -> dict[Amounts, Cover]:
    """The cheapest states, and the one in which every job has given the most."""
    kept = sorted(states, key=lambda amounts: (states[amounts], amounts))[: MOST_STATES - 1]
    return {amounts: states[amounts] for amounts in (*kept, *([most] if most in states else []))}
