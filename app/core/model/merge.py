"""Merges: two jobs of one base model that are trained as one. Views of them, and of the jobs that could be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MergeMode(StrEnum):
    IN_TURN = "in-turn"  # the companion starts where the lead has ended, from what the lead has learned
    TOGETHER = "together"  # side by side, in one process


class MergeState(StrEnum):
    OPEN = "open"
    ENDED = "ended"  # it brought the companion to its turn, or one side to its end
    SPLIT = "split"  # it was of no use: not these two again
    VOID = "void"  # one side left it before: failed, cancelled, paused


@dataclass(frozen=True, slots=True)
class Recipe:
    """Of a job of the built-in recipe: what decides with whom it may be trained, and what is known of its course.

    `base` to `precision` must be equal in two jobs that are merged, `settings` too where they train together. `fisher`,
    the diagonal Fisher information of the task (never negative), and `pull`, a sketch of its first step (see
    `app.core.merging.transfer`), are empty until it is profiled; `profile_tries`: how often that was tried in vain.
    `ends_early`: it has a target or a patience, and so fewer steps where it learns faster; else their number is fixed.
    `losses`: step and loss, in order of steps. `step_ms`: milliseconds of a step by number of GPUs, from the throughput
    table.
    """

    base: str
    tokenizer: str = ""
    labels: str = ""
    sequence: int = 0
    precision: str = ""
    shares: bool = True  # with other jobs of its project
    shares_across: bool = False  # with jobs of other projects that agree too
    fisher: tuple[float, ...] = ()
    losses: tuple[tuple[int, float], ...] = ()
    target_loss: float | None = None
    step_ms: tuple[tuple[int, float], ...] = ()
    settings: str = ""  # a digest of what jobs of one process have in common besides: batch, rate, schedule, ...
    pull: tuple[float, ...] = ()
    profile_tries: int = 0
    ends_early: bool = True
    profile_key: str = ""  # equal in jobs of a project whose tasks are equal: one profile is of them all; "": nobody's


@dataclass(frozen=True, slots=True)
class MergeView:
    """An open merge. `score` and `gain` are what it was decided on.

    Policies see the pair as one job, its lead: while the two train together the lead's view holds the GPUs, the run
    time and the deadline of both, and its run names both. The companion is not placed by itself.
    `fruitless_epochs`: for how many epochs now the monitor has seen no better validation (of either, or in turn of the
    companion while the lead trains).
    """

    merge_id: str
    lead_id: str
    companion_id: str
    mode: MergeMode
    gpus: int
    row_version: int
    score: float
    gain: float
    fruitless_epochs: int = 0
