"""Which ways to train a job fit on which GPUs (MARP of the Frenzy paper), and what would make it fit where none does.

Every plan keeps the user's global batch: replicas x micro-batch x accumulation. Because a larger micro-batch never
needs less memory, the largest that fits is found by bisection and stands for all smaller ones. A layout is estimated
once for all kinds of GPU.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from app.core.memory.architecture import Architecture
from app.core.memory.calibration import Calibration, corrected
from app.core.memory.fit import Estimate, estimate, verdict
from app.core.memory.semantics import DEFAULT, Semantics
from app.core.memory.training import Sharding, Training
from app.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Device:
    """A kind of GPU: the memory that its driver reports, and how many are in one machine at most.

    `calibration`: how runs like the one that is asked about turned out on it.
    """

    name: str
    capacity_bytes: int
    most: int = 1
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        for field, value in (("capacity_bytes", self.capacity_bytes), ("most", self.most)):
            if value <= 0:
                raise InvalidInput(f"{field} of {self.name} is {value}: it must be a positive number", param=field)


@dataclass(frozen=True, slots=True)
class FeasiblePlan:
    """One way to train the job on one kind of GPU. `training` has the micro-batch as its batch."""

    device: str
    training: Training
    estimated: Estimate

    @property
    def gpus(self) -> int:
        return self.training.gpus

    @property
    def global_batch(self) -> int:
        """Sequences in one step of the optimizer."""
        return self.training.batch * self.training.accumulation * self.training.replicas


@dataclass(frozen=True, slots=True)
class Remedy:
    """Changes that together make the job fit, in the words of the configuration's fields."""

    changes: tuple[str, ...]
    training: Training
    estimated: Estimate


def feasible_plans(
    model: Architecture,
    training: Training,
    devices: Iterable[Device],
    *,
    global_batch: int,
    semantics: Semantics = DEFAULT,
    plain: bool = False,
) -> tuple[FeasiblePlan, ...]:
    """Every layout that fits with the default margin, each with its largest micro-batch; fewest GPUs first.

    `plain`: only those on all GPUs of a machine that split no matrices, which are better wherever they fit.

    `training` says what the user asked for; its batch, accumulation, GPUs and layout are replaced. Checkpointing that
    was asked for stays on; where it was not, it is tried too. Raises InvalidInput that names a field.
    """
    if global_batch <= 0:
        raise InvalidInput(f"global_batch is {global_batch}: it must be a positive number", param="global_batch")
    found: list[FeasiblePlan] = []
    layouts: dict[int, list[_Layout]] = {}
    for device in devices:
        if device.most not in layouts:
            shared = _layouts(model, training, device.most, global_batch, plain=plain)
            layouts[device.most] = [_Layout(model, each, global_batch // each.replicas, semantics) for each in shared]
        found += [plan for each in layouts[device.most] if (plan := each.largest_on(device)) is not None]
    found.sort(key=lambda plan: (plan.gpus, plan.training.checkpointing, -plan.training.batch, plan.device))
    return tuple(found)


def least_memory(
    model: Architecture,
    training: Training,
    most: int,
    *,
    global_batch: int,
    semantics: Semantics = DEFAULT,
    plain: bool = False,
) -> tuple[Training, Estimate]:
    """The layout on at most so many GPUs that needs the least memory on each, whether or not it fits anywhere.
    `plain`: of those on exactly so many that split no matrices, where the batch can be shared by them."""
    if global_batch <= 0:
        raise InvalidInput(f"global_batch is {global_batch}: it must be a positive number", param="global_batch")
    layouts = _layouts(model, training, most, global_batch, plain=plain)
    smallest = [_Layout(model, each, global_batch // each.replicas, semantics).smallest() for each in layouts]
    return min(smallest, key=lambda found: found[1].allocated.expected)


def remedies(
    model: Architecture, training: Training, device: Device, *, semantics: Semantics = DEFAULT
) -> tuple[Remedy, ...]:
    """What would make a job fit on one GPU of a kind: every single change that does, or else the first that together
    do. Empty when it fits as it is, and when not even all of them help."""
    if _fits(model, training, device, semantics) is not None:
        return ()
    single: list[Remedy] = []
    together = training
    names: list[str] = []
    for name, changed in _changes(training):
        alone = _fits(model, changed, device, semantics)
        if alone is not None:
            single.append(Remedy((name,), changed, alone))
    if single:
        return tuple(single)
    for name in [each for each, _ in _changes(training)]:
        step = dict(_changes(together)).get(name)
        if step is None:
            continue
        together, names = step, [*names, name]
        reached = _fits(model, together, device, semantics)
        if reached is not None:
            return (Remedy(tuple(names), together, reached),)
    return ()


def _changes(training: Training) -> Iterator[tuple[str, Training]]:
    """One change at a time, the least intrusive first."""
    if not training.checkpointing:
        yield "checkpointing", replace(training, checkpointing=True)
    if training.batch > 1 and not training.optimizer.startswith("in_backward"):  # which cannot accumulate
        whole = training.batch * training.accumulation
        yield "batch=1", replace(training, batch=1, accumulation=whole)
    if training.method == "full":
        if training.optimizer in {"adamw", "adamw_foreach", "adamw_fused"} and not training.sharded:
            yield "optimizer=paged_adamw_8bit", replace(training, optimizer="paged_adamw_8bit")
        yield "method=lora", replace(training, method="lora", optimizer="adamw")
    if training.method != "qlora":
        precision = "bf16" if training.precision in {"fp32", "amp_bf16"} else training.precision
        precision = "fp16" if precision == "amp_fp16" else precision
        yield (
            "method=qlora",
            replace(
                training,
                method="qlora",
                quantisation="nf4_dq",
                precision=precision,
                autocast=True,
                optimizer="paged_adamw_8bit",
                sharded=False,
                sharding="ddp" if training.sharded and training.sharding == "fsdp" else training.sharding,
            ),
        )
    if training.sequence >= 2:
        yield f"sequence={training.sequence // 2}", replace(training, sequence=training.sequence // 2)


def _layouts(
    model: Architecture, training: Training, most: int, global_batch: int, *, plain: bool = False
) -> Iterator[Training]:
    for gpus in (most,) if plain else _counts(most):
        for tensor_parallel in (1,) if plain else _counts(gpus):
            replicas = gpus // tensor_parallel
            if gpus % tensor_parallel or model.kv_heads % tensor_parallel or global_batch % replicas:
                continue
            for sharding in _shardings(training, replicas, tensor_parallel):
                for checkpointing in (True,) if training.checkpointing else (False, True):
                    yield replace(
                        training,
                        batch=1,
                        accumulation=1,
                        gpus=gpus,
                        tensor_parallel=tensor_parallel,
                        sharding=sharding,
                        checkpointing=checkpointing,
                    )


def _counts(most: int) -> list[int]:
    powers = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
    return powers if powers[-1] == most else [*powers, most]


def _shardings(training: Training, replicas: int, tensor_parallel: int) -> tuple[Sharding, ...]:
    if replicas == 1:
        return ("none",)
    return training.shardings if tensor_parallel == 1 else ("ddp",)


class _Layout:
    """One layout with every micro-batch that divides a replica's share, estimated when first asked for."""

    def __init__(self, model: Architecture, layout: Training, per_replica: int, semantics: Semantics) -> None:
        self._model, self._layout, self._semantics = model, layout, semantics
        self._per_replica = per_replica
        self._batches = divisors(per_replica)
        if layout.optimizer.startswith("in_backward"):
            self._batches = self._batches[-1:]
        self._known: dict[int, tuple[Training, Estimate]] = {}

    def largest_on(self, device: Device) -> FeasiblePlan | None:
        """The largest micro-batch that fits. The whole share is tried first: it alone needs no accumulation."""
        batches = self._batches
        if not self._fits(batches[-1], device):
            fitting = bisect_right(batches[:-1], 0, key=lambda batch: 0 if self._fits(batch, device) else 1)
            if not fitting:
                return None
            batches = batches[:fitting]
        training, found = self._estimated(batches[-1])
        return FeasiblePlan(device.name, training, corrected(found, device.calibration))

    def smallest(self) -> tuple[Training, Estimate]:
        """With the smallest micro-batch that this optimizer allows."""
        return self._estimated(self._batches[0])

    def _fits(self, batch: int, device: Device) -> bool:
        found = corrected(self._estimated(batch)[1], device.calibration)
        return verdict(found, device.capacity_bytes) == "fits"

    def _estimated(self, batch: int) -> tuple[Training, Estimate]:
        if batch not in self._known:
            training = replace(self._layout, batch=batch, accumulation=self._per_replica // batch)
            self._known[batch] = training, estimate(self._model, training, self._semantics)
        return self._known[batch]


@lru_cache(maxsize=1024)
def divisors(number: int) -> Sequence[int]:
    """All of them, ascending."""
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return tuple(sorted({*small, *(number // each for each in small)}))


def _fits(model: Architecture, training: Training, device: Device, semantics: Semantics) -> Estimate | None:
    found = corrected(estimate(model, training, semantics), device.calibration)
    return found if verdict(found, device.capacity_bytes) == "fits" else None
