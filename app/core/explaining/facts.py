"""What an explanation is made of: rows, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.core.model.merge import MergeMode
from app.core.model.money import Money
from app.core.model.move import MoveState
from app.core.model.node import NodeState, Tier
from app.core.model.run import RunState
from app.core.model.transfer import Transfer
from app.core.policies.reasons import gpus
from app.core.progress import Finish
from app.core.steering import JobStanding


@dataclass(frozen=True, slots=True)
class Said:
    """Something that was written down when it happened."""

    at_ms: int
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobMachine:
    """A node, as far as it matters to its job. The price is for what the job holds of it."""

    node_id: str
    provider: str
    tier: Tier
    state: NodeState
    gpu_type: str
    gpu_count: int
    price_per_hour: Money
    requested_ms: int
    expected_ready_ms: int
    startup_deadline_ms: int
    interruptible: bool = False

    def words(self) -> str:
        bid = ", by a bid that may be lost" if self.interruptible else ""
        return f"{self.provider} {gpus(self.gpu_count, self.gpu_type)} at {self.price_per_hour}/h ({self.tier}{bid})"

    def data(self) -> dict[str, Any]:
        return {
            "node_id": self.node_id,
            "provider": self.provider,
            "tier": self.tier.value,
            "node_state": self.state.value,
            "price_micros_per_hour": self.price_per_hour.micros,
        }


@dataclass(frozen=True, slots=True)
class LastStay:
    """The newest run that is over, and the machine it was on."""

    run_id: str
    machine: JobMachine
    running_ms: int | None
    ended_ms: int
    end_reason: str
    end_message: str


@dataclass(frozen=True, slots=True)
class LastDecision:
    """The newest decision on record. `budget_ms`: the serverless budget F it worked with, if it told one."""

    at_ms: int
    policy: str
    budget_ms: int | None


@dataclass(frozen=True, slots=True)
class Moving:
    """A move that is under way, and the machine it goes to. `step`: at which it goes on, once that is known."""

    state: MoveState
    reason: str
    begun_ms: int
    saving_ms: int | None
    step: int | None
    machine: JobMachine


@dataclass(frozen=True, slots=True)
class Merged:
    """The merge that the job is in. `other`: the other job's id, None when it is of another project and not to be told.
    `leads`: whether the job's place is the place of both. `fruitless_epochs`, `most_epochs`: for how many the
    validation has not improved, and after how many the two are split.
    """

    mode: MergeMode
    leads: bool
    other: str | None
    reason: str
    begun_ms: int
    fruitless_epochs: int
    most_epochs: int

    def whom(self) -> str:
        return self.other or "a job of another project"

    def data(self) -> dict[str, Any]:
        return {"merge_mode": self.mode.value, "merged_with": self.other, "merged_ms": self.begun_ms}


@dataclass(frozen=True, slots=True)
class Facts:
    """All that an explanation may say. Times are milliseconds since the epoch."""

    now_ms: int
    job: JobStanding
    submitted_ms: int
    since_ms: int | None  # when the job came into its present state
    ended_ms: int | None
    deadline_ms: int
    deadline_given: bool
    step: int
    total_steps: int | None
    checkpoint_step: int | None
    serverless_used_ms: int
    not_before_ms: int
    wait_reason: str | None
    end_message: str | None
    finish: Finish | None  # estimated
    placed: Said | None  # why the present run is where it is
    stopping: Said | None  # why the present run was asked to leave
    run_state: RunState | None
    running_ms: int | None  # since when code runs in the present run
    machine: JobMachine | None  # of the present run
    coming: JobMachine | None  # rented for this job, and not ready yet or not taken yet
    last_stay: LastStay | None
    earlier_waiting: int  # jobs of the project that wait too and have an earlier deadline
    decided: LastDecision | None
    tick_ms: int  # the longest time between two decisions
    grace_ms: int  # from the request to leave to the kill
    moving: Moving | None = None
    move_timeout_ms: int = 0  # how long its target may take to prepare
    reserved: tuple[Remark, ...] = ()  # what of its place, or of where it could be, is reserved
    lent: tuple[Remark, ...] = ()  # what of its GPUs is lent to others, or by them
    queued: tuple[Remark, ...] = ()  # where it stands where GPUs are lent, and how fast it is with them
    cut: Said | None = None  # why the machine that it has, or that comes for it, is on that host of a pool
    spread: tuple[Remark, ...] = ()  # how close to each other the machines of a job on several are
    resized: tuple[Remark, ...] = ()  # that its owner wants it on another number of machines
    transfer: Transfer | None = None  # of bytes that it waits for
    unsaved: str | None = None  # why its checkpoints are not kept
    saves: bool = True  # when it is asked to, as its code says
    locked: bool = False  # its owner wants it to stay where it is

    merged: Merged | None = None
    split: Said | None = None  # why the job's last merge was undone
    learned: Said | None = None  # from whom it has what it began with
    is_spot: bool = False
    freed: Said | None = None  # who gave up GPUs for it, or that it did for another job
    retried: Said | None = None  # that it failed by itself, and is begun again
    max_wait_ms: int | None = None  # from its submission to its first place

    @property
    def stays(self) -> bool:
        """Whether no plan takes it off its machine."""
        never_saved = not self.saves and self.checkpoint_step is None
        return self.locked or self.unsaved is not None or never_saved


@dataclass(frozen=True, slots=True)
class Remark:
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)


def decision_data(facts: Facts) -> dict[str, Any]:
    """The newest decision, as data of a sentence."""
    if facts.decided is None:
        return {}
    return {"decided_ms": facts.decided.at_ms, "policy": facts.decided.policy}
