"""What ending a spot job would waste, in GPU-microseconds, and what is known of its saves.

The paper (SpotGPU, section 4.2) counts G * (now - last checkpoint). A save after SIGTERM rescues that work, so here it
counts only with the probability that there is none, and saving and restoring count always:

    G * (P(no save in the grace) * (now - last checkpoint) + save + restore) * (1 + evictions suffered)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median_low

PRIOR_TRIES = 2.0  # how many tries what is known of the pool's other jobs counts for


@dataclass(frozen=True, slots=True)
class GrowingCost:
    """A cost that grows evenly: `fixed_gpu_us` and, for every millisecond since `since_ms`, `growth_gpu_us`. Whole
    numbers, so that sums do not depend on their order."""

    fixed_gpu_us: int
    growth_gpu_us: int = 0
    since_ms: int = 0
    words: str = ""

    def __post_init__(self) -> None:
        if self.fixed_gpu_us < 0 or self.growth_gpu_us < 0:
            raise ValueError(f"a cost of {self.fixed_gpu_us} growing by {self.growth_gpu_us} is below zero")

    def at(self, now_ms: int) -> int:
        """GPU-microseconds. A clock that runs back makes nothing cheaper than it was at the start."""
        return self.fixed_gpu_us + self.growth_gpu_us * max(0, now_ms - self.since_ms)


@dataclass(frozen=True, slots=True)
class GraceSaves:
    """How often a job was asked to save and leave, and how often its save was complete within the grace."""

    tries: int = 0
    saved: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.saved <= self.tries:
            raise ValueError(f"{self.saved} saves in {self.tries} tries cannot be")

    def after(self, saved: bool) -> GraceSaves:
        return GraceSaves(self.tries + 1, self.saved + saved)

    def no_save(self, pool: float = 0.5) -> float:
        """P(no save in the grace): the job's own tries, and the pool's probability as if it were PRIOR_TRIES more.
        Raises ValueError for a probability outside of 0 to 1."""
        if not (isfinite(pool) and 0 <= pool <= 1):
            raise ValueError(f"{pool} is no probability")
        return (self.tries - self.saved + PRIOR_TRIES * pool) / (self.tries + PRIOR_TRIES)


@dataclass(frozen=True, slots=True)
class Saving:
    """What is known of a job's checkpoints. `saved_ms`: its last one, None before the first of this run.
    `stated_interval_ms`: what its owner says; None where nothing is said."""

    started_ms: int
    saved_ms: int | None = None
    stated_interval_ms: int | None = None
    save_ms: int = 0
    restore_ms: int = 0
    grace: GraceSaves = GraceSaves()
    suffered: int = 0  # evictions


@dataclass(frozen=True, slots=True)
class PoolHabits:
    """What a job of which nothing is known counts as."""

    no_save: float = 0.5
    unsaved_ms: int = 600_000


def pool_habits(jobs: Sequence[Saving], now_ms: int) -> PoolHabits:
    """The median work since a checkpoint of the jobs that have one, and how often saves in the grace failed among all
    that were asked, beside one failure in two tries before anything is known."""
    unsaved = [max(0, now_ms - job.saved_ms) for job in jobs if job.saved_ms is not None]
    tries = sum(job.grace.tries for job in jobs)
    no_save = (tries - sum(job.grace.saved for job in jobs) + 1) / (tries + 2)
    return PoolHabits(no_save, median_low(unsaved) if unsaved else PoolHabits().unsaved_ms)


def cost_of_ending(job: Saving, gpus: int, habits: PoolHabits, now_ms: int) -> GrowingCost:
    """The formula above for a job with so many GPUs on all its nodes. Raises ValueError for no or fewer GPUs.

    A measured checkpoint comes before a stated interval, which is believed for two intervals without a checkpoint.
    A job that tells neither counts as if its last had been the median job's, however long it runs: what hides its
    checkpoints is not spared for it. Until its run is that old, its own age counts.
    """
    if gpus < 1:
        raise ValueError(f"{gpus} GPUs cannot be freed")
    weight = gpus * (1 + max(0, job.suffered))
    per_ms = round(1000 * weight * job.grace.no_save(habits.no_save))
    moving = 1000 * weight * (job.save_ms + job.restore_ms)
    since_ms, most_ms = _unsaved(job, habits, now_ms)
    lost_ms = max(0, now_ms - since_ms)
    words = (
        f"{gpus} GPUs x ({job.grace.no_save(habits.no_save):.2f} no save x "
        f"{min(lost_ms, most_ms or lost_ms) / 1000:.0f} s unsaved + {(job.save_ms + job.restore_ms) / 1000:.0f} s "
        f"to save and restore) x {1 + max(0, job.suffered)}"
    )
    if most_ms is not None and lost_ms >= most_ms:
        return GrowingCost(moving + per_ms * most_ms, words=words)
    return GrowingCost(moving, per_ms, since_ms, words)


def literal_cost(job: Saving, gpus: int, now_ms: int) -> GrowingCost:
    """The paper's C = G * (now - last checkpoint) as it is printed: since its start for a job without one. Raises
    ValueError for no or fewer GPUs."""
    if gpus < 1:
        raise ValueError(f"{gpus} GPUs cannot be freed")
    since_ms = job.started_ms if job.saved_ms is None else job.saved_ms
    words = f"{gpus} GPUs x {max(0, now_ms - since_ms) / 1000:.0f} s since its last checkpoint"
    return GrowingCost(0, 1000 * gpus, since_ms, words)


def _unsaved(job: Saving, habits: PoolHabits, now_ms: int) -> tuple[int, int | None]:
    """From when on work is unsaved, and the most that counts."""
    if job.saved_ms is not None:
        return job.saved_ms, None
    stated = job.stated_interval_ms
    if stated is not None and stated > 0 and now_ms - job.started_ms < 2 * stated:
        return job.started_ms, stated
    return job.started_ms, habits.unsaved_ms
