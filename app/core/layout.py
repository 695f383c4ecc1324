"""How a run is laid out on the very GPUs that it was given: in words for people, as JSON for its script. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from app.core.memory.calibration import Calibration, corrected
from app.core.memory.exact import ExactEstimate, decide
from app.core.memory.fit import Estimate, estimate, verdict
from app.core.memory.need import Stated
from app.core.memory.plans import divisors
from app.core.memory.training import Precision, Sharding, Training
from app.core.precision import on_gpu
from app.core.throughput import StepTime, Throughput

_GB = 1_000_000_000
_ZERO_STAGES = {"zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3}


@dataclass(frozen=True, slots=True)
class GpuSet:
    """GPUs of one kind in one machine; of the built-in recipe, which shares a step over machines too, in several."""

    gpu_type: str
    memory_bytes: int
    gpus: int


@dataclass(frozen=True, slots=True)
class StepCut:
    """How a step on one GPU is cut: sequences at once, and whether their activations are recomputed."""

    micro_batch: int
    checkpointing: bool


@dataclass(frozen=True, slots=True)
class Learned:
    """What runs have taught of such a training: how far predicted memory is off there, and how long steps take."""

    calibration: Calibration | None = None
    throughput: Throughput = field(default_factory=Throughput)


@dataclass(frozen=True, slots=True)
class Layout:
    """`training` has the micro-batch as its batch. `fits`: also an unlucky run; else this is the most sparing one.

    `begun`: how the job cut its steps before, where these GPUs are not sure to hold that."""

    place: GpuSet
    training: Training
    estimated: Estimate
    fits: bool
    decided: ExactEstimate | None = None
    step: StepTime | None = None
    begun: StepCut | None = None

    def as_json(self) -> dict[str, Any]:
        """For the run's row and its script: data_parallel x micro_batch x accumulation is the user's batch."""
        training = self.training
        return {
            "gpu_type": self.place.gpu_type,
            "gpus": training.gpus,
            "data_parallel": training.replicas,
            "sharding": training.sharding,
            "zero_stage": _ZERO_STAGES.get(training.sharding, 0),
            "micro_batch": training.batch,
            "accumulation": training.accumulation,
            "checkpointing": training.checkpointing,
            "precision": training.precision,
            "autocast": training.casts,
            "batch": training.replicas * training.batch * training.accumulation,
            "sequence": training.sequence,
            "allocated_bytes": self.estimated.allocated.expected,
            "fits": self.fits,
        }

    def in_words(self) -> str:
        """`laid out on 2 A100: 2 x 4 sequences x 2 micro-batches, zero2, ... (36.2 of 42.9 GB each)`."""
        training, place = self.training, self.place
        parts = [f"{training.replicas} x {training.batch} sequences x {training.accumulation} micro-batches"]
        if training.sharding != "none":
            parts.append(training.sharding)
        if training.checkpointing:
            parts.append("activations recomputed")
        parts.append(training.precision)
        memory = f"{self.estimated.process.expected / _GB:.1f} of {place.memory_bytes / _GB:.1f} GB each"
        unsure = "" if self.fits else ", which may be too little"
        told = f"laid out on {training.gpus} {place.gpu_type}: {', '.join(parts)} ({memory}{unsure})"
        if self.begun is None:
            return told
        before = f"{self.begun.micro_batch} sequences at once{', recomputed' if self.begun.checkpointing else ''}"
        return f"{told}; its steps were cut into {before} before, which need not fit here: last bits may differ"


def lay_out(stated: Stated, place: GpuSet, learned: Learned | None = None) -> Layout:
    """The quickest layout on these GPUs that fits and keeps to what the job states; the most sparing where none is sure
    to fit. Matrices are never split: few scripts can. Raises InvalidInput for a training that cannot be."""
    stated = replace(stated, training=on_gpu(stated.training, place.gpu_type))
    return _choose(stated, place, _candidates(stated, place.gpus), learned or Learned())


def lay_out_alone(
    stated: Stated,
    place: GpuSet,
    learned: Learned | None = None,
    begun: StepCut | None = None,
    precision: Precision | None = None,
) -> Layout:
    """As `lay_out`, for the built-in recipe: it trains on as many GPUs as it states, each with a whole copy, and takes
    a micro-batch that is stated also where the last one of a step is then smaller.

    `begun`: how the job has cut its steps so far. It goes on so wherever that fits: sums that are taken in another
    order are others in their last bits. `precision`: what it has computed in so far, where the GPU decided it."""
    learned, place = learned or Learned(), replace(place, gpus=stated.gpus)
    stated = replace(stated, training=on_gpu(stated.training, place.gpu_type, precision))
    if begun is not None:
        found = _laid_out(stated, place, _cut(stated, begun.micro_batch, begun.checkpointing), learned)
        if found.fits:
            return _timed(stated, found, learned)
    micros = _shared_by_all(stated) if stated.micro_batch is None else (stated.micro_batch,)
    cuts = [_cut(stated, micro, checkpointing) for micro in micros for checkpointing in _recomputing(stated)]
    found = _choose(stated, place, cuts, learned)
    is_another = begun is not None and begun != StepCut(found.training.batch, found.training.checkpointing)
    return replace(found, begun=begun) if is_another else found


def _cut(stated: Stated, micro_batch: int, checkpointing: bool) -> Training:
    """Its GPUs take the parts of a step in turns: so many turns are its micro-batches."""
    micro = min(micro_batch, stated.batch)
    parts = -(-stated.batch // micro)
    return replace(
        stated.training,
        batch=micro,
        accumulation=-(-parts // stated.gpus),
        gpus=stated.gpus,
        sharding=stated.shardings[0],
        checkpointing=checkpointing,
    )


def _shared_by_all(stated: Stated) -> list[int]:
    """Micro-batches with which a step has a part for each GPU, if it has so many sequences."""
    return [micro for micro in divisors(stated.batch) if micro * stated.gpus <= stated.batch] or [1]


def _choose(stated: Stated, place: GpuSet, candidates: Iterable[Training], learned: Learned) -> Layout:
    """The quickest that fits, else the most sparing; of equals, the first."""
    found = [_laid_out(stated, place, training, learned) for training in candidates]
    fitting = [layout for layout in found if layout.fits]
    if fitting:
        return min((_timed(stated, layout, learned) for layout in fitting), key=_effort)
    return min(found, key=lambda layout: layout.estimated.process.expected)


def _laid_out(stated: Stated, place: GpuSet, training: Training, learned: Learned) -> Layout:
    """What a symbolic run decides is not corrected: runs were compared with the tables."""
    found = estimate(stated.model, training)
    decided = None if stated.exact is None else decide(stated.exact, training, found)
    estimated = corrected(found, learned.calibration) if decided is None else decided.estimated
    fits = verdict(estimated, place.memory_bytes) == "fits"
    return Layout(place, training, estimated, fits, decided)


def _timed(stated: Stated, layout: Layout, learned: Learned) -> Layout:
    step = learned.throughput.step(stated.model, layout.training, layout.place.gpu_type, name=stated.name)
    return replace(layout, step=step)


def _candidates(stated: Stated, gpus: int) -> Iterator[Training]:
    """On as many of the GPUs as share the batch evenly."""
    replicas = max(each for each in divisors(stated.batch) if each <= gpus)
    share = stated.batch // replicas
    shardings: tuple[Sharding, ...] = ("none",) if replicas == 1 else stated.training.shardings
    for micro in _micro_batches(stated, share):
        for checkpointing in _recomputing(stated):
            for sharding in shardings:
                yield replace(
                    stated.training,
                    batch=micro,
                    accumulation=max(1, share // micro),
                    gpus=replicas,
                    sharding=sharding,
                    checkpointing=checkpointing,
                )


def _recomputing(stated: Stated) -> tuple[bool, ...]:
    return (False, True) if stated.checkpointing is None else (stated.checkpointing,)


def _micro_batches(stated: Stated, share: int) -> tuple[int, ...]:
    if stated.training.optimizer.startswith("in_backward"):  # which cannot accumulate
        return (share,)
    if stated.micro_batch is not None and share % stated.micro_batch == 0:
        return (stated.micro_batch,)
    return tuple(divisors(share))


def _effort(layout: Layout) -> tuple[float, int, bool, int]:
    """Time; for GPUs without figures, and for equals, the fewest micro-batches and the least work."""
    training = layout.training
    order = ("none", "ddp", "zero2", "fsdp")
    ms = 0.0 if layout.step is None else layout.step.ms
    return ms, training.accumulation, training.checkpointing, order.index(training.sharding)
