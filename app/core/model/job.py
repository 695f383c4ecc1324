"""A job: what `run()` submits. Its states, why it ends, and what it asks for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from app.core.model.money import Money


class JobState(StrEnum):
    """DESIGN of states: see `app.core.lifecycle.JOB_TRANSITIONS` for the arrows."""

    QUEUED = "queued"  # submitted, never started
    STARTING = "starting"  # a run holds it; user code is not running yet
    RUNNING = "running"  # user code runs
    CHECKPOINTING = "checkpointing"  # asked to stop at the next step and save
    WAITING = "waiting"  # has run before; waits for a place to go on
    PAUSED = "paused"  # stopped on purpose, can be resumed
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL_JOB_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
PLACEABLE_JOB_STATES = frozenset({JobState.QUEUED, JobState.WAITING})


class PauseReason(StrEnum):
    USER = "user"
    COST_CAP = "cost_cap"
    DAY_LIMIT = "day_limit"  # the installation has spent at real providers what it may in a day
    BUDGET = "budget"  # a budget that it counts against is used up
    INTERNAL_ERROR = "internal_error"  # what was decided for it failed on our side, again and again


class JobEnd(StrEnum):
    """Why a job is over. The user's fault and ours are never the same word."""

    FINISHED = "finished"
    USER_CODE_FAILED = "user_code_failed"
    OUT_OF_MEMORY = "out_of_memory"  # and no larger machine to try it on, or tried there too
    ENVIRONMENT_FAILED = "environment_failed"  # the pip set or the bundle could not be prepared
    PROCESS_KILLED = "process_killed"  # killed from outside more often than the fault budget allows
    NODE_LOST = "node_lost"  # machines died more often than the fault budget allows
    CANCELLED = "cancelled"
    MAX_DURATION = "max_duration"


class JobKind(StrEnum):
    INTERACTIVE = "interactive"
    BATCH = "batch"


class PriorityClass(StrEnum):
    GUARANTEED = "guaranteed"
    SPOT = "spot"


class StartRule(StrEnum):
    AUTO = "auto"  # at once, unless a long batch job gains from waiting a moment for a cheaper node
    NOW = "now"
    WHEN_CHEAP = "when-cheap"


@dataclass(frozen=True, slots=True)
class Resources:
    """What one run of the job needs. `gpu_type` None means any type with enough memory.

    `gpu_memory_bytes_by_type` takes the place of `gpu_memory_bytes_min` on the types that it names (small letters and
    digits alone): there the prediction was corrected by runs.
    """

    gpus_min: int = 1
    gpus_max: int = 1
    gpu_type: str | None = None
    gpu_memory_bytes_min: int = 0
    cpus_min: int = 1
    memory_bytes_min: int = 0
    base_image: str | None = None  # runs only on nodes that were rented with this image; None: with ours
    gpu_memory_bytes_by_type: tuple[tuple[str, int], ...] = ()
    nodes: int = 1  # machines that it runs on at once; all else here is of each of them
    nodes_wanted: int | None = None  # of one that began on `nodes`: its owner wants it to go on with so many


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits that the user set; None means no limit.

    `max_hourly`: what the GPUs that it gets may cost per hour. `max_wait_ms`: for how long it may be kept waiting, from
    its submission to its first place, to save money.
    """

    max_cost: Money | None = None
    max_duration_ms: int | None = None
    max_hourly: Money | None = None
    max_wait_ms: int | None = None

    def allows_hourly(self, micros_per_hour: int) -> bool:
        """Whether a place at this price may be taken."""
        return self.max_hourly is None or micros_per_hour <= self.max_hourly.micros


NO_CAPS = Caps()


@dataclass(frozen=True, slots=True)
class MostUnderOne:
    """How many machines of a job on several may be under one switch, and in one rack, so that it or its other machines
    outlive it. None: any number. Of machines of which nobody says it, all count as under one, and in one."""

    rack: int | None = None
    switch: int | None = None

    @property
    def by_level(self) -> tuple[int | None, int | None]:
        """From the top level down, as domains are named (`app.core.topology.Domain`)."""
        return self.rack, self.switch

    def in_words(self) -> str:
        """Empty where there is no bound."""
        told = [(self.switch, "under one switch"), (self.rack, "in one rack")]
        words = [f"{most} {where}" for most, where in told if most is not None]
        return f"at most {' and '.join(words)}" if words else ""


ANY_NUMBER = MostUnderOne()


@dataclass(frozen=True, slots=True)
class Affinity:
    """Beside whom a job is placed. Labels are written `name=value`; `own` are the job's.

    `beside`: while a job with one of these runs on a rented node of the project, this one goes there and nowhere else.
    `apart`: never on a node where a job with one of these is, and no such job comes where this one is.
    """

    own: frozenset[str] = frozenset()
    beside: frozenset[str] = frozenset()
    apart: frozenset[str] = frozenset()

    def forbids(self, other: Affinity) -> bool:
        """Whether the two may not share a node."""
        return not (self.apart.isdisjoint(other.own) and other.apart.isdisjoint(self.own))


NO_AFFINITY = Affinity()
