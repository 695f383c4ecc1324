"""A run whose training can change its GPUs, as those see it who lend them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from app.core.resizing import GpusHeld, GpusTold, is_settled

REST_MS = 5_000  # between two changes of one run: each costs it a tenth of a second
# Until it has shown it, and at least: the step in which processes join takes 0.1 to 0.3 s longer, of tiny models (ADR
# 0098).
RESIZE_S = 1.0
RESTART_S = 60.0  # to save, to leave, and to begin again (ADR 0129)
_RESTS = 2  # times what a restart takes, between two of them


@dataclass(frozen=True, slots=True)
class ElasticRun:
    """A run whose training can change its GPUs, and whose owner lends them. `own`: as many as its job may have;
    `least`: as few as it may be left with, for whoever waits. `changed_ms`: since when it holds what it holds.
    `broken`: GPUs on which no process of it could begin. `due_ms`: the deadline that its owner gave. `restarts`: each
    change ends its processes, which begin again from what they have saved; in `restart_s`, until it has shown it."""

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
    restarts: bool = False
    restart_s: float = RESTART_S

    @property
    def resize_s(self) -> float:
        """For how long it trains nothing when it changes its GPUs."""
        return resize_s_of(self.told, self.restart_s if self.restarts else RESIZE_S)

    @property
    def leaves_after_ms(self) -> int:
        """About so long after it was asked for a GPU that is free."""
        return round(self.resize_s * 1000) if self.restarts else 0

    @property
    def rest_ms(self) -> int:
        """Between two changes."""
        return round(_RESTS * self.resize_s * 1000) if self.restarts else REST_MS

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
        return self.uses_all and not 0 <= now_ms - self.changed_ms < self.rest_ms


def resize_s_of(told: GpusTold, counted_s: float) -> float:
    """What a change of its GPUs takes of a training: as the last one did, else what is counted."""
    return counted_s if told.pause_ms is None else max(RESIZE_S, told.pause_ms / 1000)
