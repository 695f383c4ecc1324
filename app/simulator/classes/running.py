"""One job on its way through the pool: what it has done, saved, lost and waited for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.core.eviction import GraceSaves, Saving
from app.simulator.classes.jobs import TwoClassJob


@dataclass(frozen=True, slots=True)
class HeldTime:
    """GPUs that the job had, from one instant to another: parts by node."""

    from_ms: int
    until_ms: int
    places: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SavingTimes:
    """What is put in, in milliseconds. The grace is the paper's (SpotGPU, section 4.2), and a save takes as long as the
    evictions that it measured took on average; restores of 30 s and checkpoints every 10 minutes are assumptions."""

    checkpoint_every_ms: int = 600_000
    grace_ms: int = 60_000
    save_ms: int = 13_000
    restore_ms: int = 30_000
    minimum_run_ms: int = 0
    reserved_ms: int = 600_000


@dataclass(slots=True)
class TwoClassRun:
    """`saved_work_ms`: work that a restart goes on from. `turn` tells one run of the job from its others."""

    job: TwoClassJob
    saved_work_ms: int = 0
    started_ms: int = 0  # of this run, after its restore
    places: Mapping[str, int] = field(default_factory=dict)  # parts by node
    turn: int = 0
    leaving: bool = False
    restores_ms: int = 0  # of this run
    grace: GraceSaves = field(default_factory=GraceSaves)
    evictions: int = 0
    first_start_ms: int | None = None
    end_ms: int | None = None
    wasted_gpu_ms: int = 0
    held: list[HeldTime] = field(default_factory=list)

    def start(self, now_ms: int, places: Mapping[str, int], times: SavingTimes) -> int:
        """It has its GPUs. The instant at which it will be done."""
        self.restores_ms = times.restore_ms if self.saved_work_ms else 0
        self.started_ms = now_ms + self.restores_ms
        self.places = places
        self.turn += 1
        self.leaving = False
        if self.first_start_ms is None:
            self.first_start_ms = now_ms
        return self.started_ms + self.job.work_ms - self.saved_work_ms

    def leave(self, now_ms: int, times: SavingTimes) -> int:
        """It is told to save and end. The instant at which its GPUs are free: after its save, or with the grace; or as
        soon as it is done, if that comes first."""
        takes_ms = times.save_ms if self.job.saves else times.grace_ms
        self.turn += 1
        if (left_ms := self.started_ms + self.job.work_ms - self.saved_work_ms - now_ms) <= takes_ms:
            return now_ms + left_ms
        self.leaving = True
        self.evictions += 1
        self.grace = self.grace.after(self.job.saves)
        done_ms = max(0, now_ms - self.started_ms)
        kept_ms = done_ms if self.job.saves else done_ms - done_ms % times.checkpoint_every_ms
        began_ms = min(self.restores_ms, now_ms - (self.started_ms - self.restores_ms))
        self.wasted_gpu_ms += self.job.gpus * (done_ms - kept_ms + takes_ms + began_ms)
        self.saved_work_ms += kept_ms
        return now_ms + takes_ms

    def give_back(self, now_ms: int) -> None:
        """Its GPUs are free, because it has left or is done."""
        self.held.append(HeldTime(self.started_ms - self.restores_ms, now_ms, self.places))
        self.places = {}

    def done(self, now_ms: int) -> None:
        self.end_ms = now_ms
        self.wasted_gpu_ms += self.job.gpus * self.restores_ms

    def saving(self, now_ms: int, times: SavingTimes) -> Saving:
        """What the service would know of it."""
        done_ms = max(0, now_ms - self.started_ms)
        saved_ms = min(now_ms, self.started_ms) + done_ms - done_ms % times.checkpoint_every_ms
        return Saving(
            started_ms=self.started_ms,
            saved_ms=saved_ms,
            save_ms=times.save_ms,
            restore_ms=times.restore_ms,
            grace=self.grace,
            suffered=self.evictions,
        )
