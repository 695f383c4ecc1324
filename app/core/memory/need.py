"""The smallest GPU that a stated training fits on, and what a smaller one would take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from app.core.memory.architecture import Architecture
from app.core.memory.exact import Exact, ExactEstimate, decide, layouts_alone
from app.core.memory.fit import Estimate, estimate
from app.core.memory.plans import Device, remedies
from app.core.memory.semantics import DEFAULT, Semantics
from app.core.memory.training import Sharding, Training

SIZES_BYTES = (
    ("T4", 15_600_000_000),
    ("L4", 23_600_000_000),
    ("L40S", 47_700_000_000),
    ("A100", 84_900_000_000),
    ("H200", 150_000_000_000),
    ("B200", 191_000_000_000),
)
"""What drivers report for GPUs that can be rented in the world, where nobody offers one that is large enough."""


@dataclass(frozen=True, slots=True)
class Stated:
    """A training as a job states it. What is None is the script's to choose, and taken at its most sparing.

    `training` has no layout yet; `batch` counts the sequences in a step of the optimizer, over all `gpus`. `whole`:
    each of them holds all of the training but what is `sharded`, as the built-in recipe has it.
    """

    name: str
    model: Architecture
    training: Training
    batch: int
    gpus: int
    micro_batch: int | None = None
    checkpointing: bool | None = None
    exact: Exact | None = None
    whole: bool = False

    def over(self, machines: int) -> Stated:
        """As it is on so many machines, with the GPUs of all of them."""
        if machines == 1:
            return self
        return replace(self, gpus=self.gpus * machines, training=self.training.over(machines))

    @property
    def shardings(self) -> tuple[Sharding, ...]:
        """How it may be spread over its GPUs."""
        if self.gpus == 1:
            return ("none",)
        if self.training.sharded:  # a machine with a single GPU has nothing to split
            return ("fsdp",) if self.gpus > self.training.machines else ("ddp",)
        return ("ddp",) if self.whole else self.training.shardings


@dataclass(frozen=True, slots=True)
class LeastNeed:
    """`capacity_bytes`: the smallest GPU whose verdict is `fits`; `training`: the layout that needs no more;
    `estimated`: what it is; `decided`: what a symbolic run of that layout decided."""

    capacity_bytes: int
    training: Training
    estimated: Estimate
    decided: ExactEstimate | None = None


def least_need(stated: Stated, semantics: Semantics = DEFAULT) -> LeastNeed:
    """What each of the job's GPUs has to have. Raises InvalidInput for a training that cannot be."""
    needs = [_need(stated, layout, semantics) for layout in layouts_of(stated)]
    return min(needs, key=lambda need: (need.capacity_bytes, need.training.checkpointing))


def _need(stated: Stated, layout: Training, semantics: Semantics) -> LeastNeed:
    found = estimate(stated.model, layout, semantics)
    decided = None if stated.exact is None else decide(stated.exact, layout, found, semantics)
    estimated = found if decided is None else decided.estimated
    return LeastNeed(estimated.needed, layout, estimated, decided)


@dataclass(frozen=True, slots=True)
class StatedAlone:
    """A training on one GPU of a model that the tables do not know: its symbolic runs say what it needs."""

    name: str
    exact: Exact
    training: Training
    batch: int
    micro_batch: int | None = None
    checkpointing: bool | None = None


def least_need_alone(stated: StatedAlone) -> LeastNeed | None:
    """What its GPU has to have; None where no run leaves a layout that keeps to what it states."""
    needs = [
        LeastNeed(decided.estimated.needed, layout, decided.estimated, decided)
        for layout, decided in layouts_alone(stated.exact, stated.training, stated.batch)
        if stated.micro_batch in {None, layout.batch} and stated.checkpointing in {None, layout.checkpointing}
    ]
    return min(needs, key=lambda need: (need.capacity_bytes, need.training.checkpointing), default=None)


def layouts_of(stated: Stated) -> Iterator[Training]:
    """Every layout on exactly the job's GPUs that keeps to what it states."""
    micro = stated.micro_batch or 1
    accumulation = max(1, stated.batch // (stated.gpus * micro))
    if stated.training.optimizer.startswith("in_backward") and accumulation > 1:  # which cannot accumulate
        micro, accumulation = micro * accumulation, 1
    for checkpointing in (False, True) if stated.checkpointing is None else (stated.checkpointing,):
        for sharding in stated.shardings:
            yield replace(
                stated.training,
                batch=micro,
                accumulation=accumulation,
                gpus=stated.gpus,
                sharding=sharding,
                checkpointing=checkpointing,
            )


def changes_that_help(stated: Stated, need: LeastNeed, capacity_bytes: int) -> tuple[str, ...]:
    """Changes of the configuration, each alone where one is enough, with which a GPU of this capacity would do."""
    device = Device("", capacity_bytes, stated.gpus)
    found = remedies(stated.model, need.training, device)
    lasting = ({change.partition("=")[0]: change for change in remedy.changes} for remedy in found)
    return tuple(" and ".join(changes.values()) for changes in lasting)


def smallest_known(capacity_bytes: int) -> str | None:
    """The smallest of the common GPUs that is large enough."""
    return next((name for name, size in SIZES_BYTES if size >= capacity_bytes), None)
