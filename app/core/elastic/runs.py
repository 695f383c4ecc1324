"""A run whose training can change its GPUs, as those see it who lend them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from app.core.resizing import GpusHeld, GpusTold, is_settled

REST_MS = 5_000  # between two changes of one run: each costs it a tenth of a second


@dataclass(frozen=True, slots=True)
class ElasticRun:
    """A run whose training can change its GPUs, and whose owner lends them. `own`: as many as its job may have;
    `least`: as few as it may be left with, for whoever waits. `changed_ms`: since when it holds what it holds.
    `broken`: GPUs on which no process of it could begin. `due_ms`: the deadline that its owner gave."""

    run_id: str
    job_id: str
    node_id: str
    held: GpusHeld
    told: GpusTold
    own: int
    changed_ms: int
    broken: tuple[int, ...] = ()
    least: int = 1
    is_range: bool = False
    due_ms: int | None = None

    @property
    def asked(self) -> int:
        """As many as its owner counts on: what a range has beyond its least has to be worth a change."""
        return self.least if self.is_range else self.own

    @property
    def uses_all(self) -> bool:
        """Whether its training uses what it is to use, and nothing else."""
        return is_settled(self.held, self.told)

    def is_settled(self, now_ms: int) -> bool:
        """The same, for a while."""
        return self.uses_all and not 0 <= now_ms - self.changed_ms < REST_MS
