"""How a run is laid out on the very GPUs that it was given: in words for people, as JSON for its script. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from app.core.memory.exact import decide
from app.core.memory.fit import Estimate, estimate, verdict
from app.core.memory.need import Stated
from app.core.memory.plans import divisors
from app.core.memory.training import Sharding, Training
from app.core.roofline import gpu_named, step_ms

_GB = 1_000_000_000
_ZERO_STAGES = {"zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3}


@dataclass(frozen=True, slots=True)
class Place:
    """GPUs of one kind in one machine."""

    gpu_type: str
    memory_bytes: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Layout:
    """`training` has the micro-batch as its batch. `fits`: also an unlucky run; else this is the most sparing one."""

    place: Place
    training: Training
    allocated_bytes: int
    process_bytes: int
    fits: bool

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
            "allocated_bytes": self.allocated_bytes,
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
        memory = f"{self.process_bytes / _GB:.1f} of {place.memory_bytes / _GB:.1f} GB each"
        unsure = "" if self.fits else ", which may be too little"
        return f"laid out on {training.gpus} {place.gpu_type}: {', '.join(parts)} ({memory}{unsure})"


def lay_out(stated: Stated, place: Place) -> Layout:
    """The quickest layout on these GPUs that fits and keeps to what the job states; the most sparing where none is sure
    to fit. Matrices are never split: few scripts can. Raises InvalidInput for a training that cannot be."""
    found = [_laid_out(stated, place, training) for training in _candidates(stated, place.gpus)]
    fitting = [layout for layout in found if layout.fits]
    if fitting:
        return min(fitting, key=lambda layout: _effort(stated, layout))
    return min(found, key=lambda layout: layout.process_bytes)


def _laid_out(stated: Stated, place: Place, training: Training) -> Layout:
    found = _estimated(stated, training)
    fits = verdict(found, place.memory_bytes) == "fits"
    return Layout(place, training, found.allocated.expected, found.process.expected, fits)


def _estimated(stated: Stated, training: Training) -> Estimate:
    found = estimate(stated.model, training)
    decided = None if stated.exact is None else decide(stated.exact, training, found)
    return found if decided is None else decided.estimated


def _candidates(stated: Stated, gpus: int) -> Iterator[Training]:
    """On as many of the GPUs as share the batch evenly."""
    replicas = max(each for each in divisors(stated.batch) if each <= gpus)
    share = stated.batch // replicas
    shardings: tuple[Sharding, ...] = ("none",) if replicas == 1 else ("ddp", "zero2", "fsdp")
    for micro in _micro_batches(stated, share):
        for checkpointing in (False, True) if stated.checkpointing is None else (stated.checkpointing,):
            for sharding in shardings:
                yield replace(
                    stated.training,
                    batch=micro,
                    accumulation=max(1, share // micro),
                    gpus=replicas,
                    sharding=sharding,
                    checkpointing=checkpointing,
                )


def _micro_batches(stated: Stated, share: int) -> tuple[int, ...]:
    if stated.training.optimizer.startswith("in_backward"):  # which cannot accumulate
        return (share,)
    if stated.micro_batch is not None and share % stated.micro_batch == 0:
        return (stated.micro_batch,)
    return tuple(divisors(share))


def _effort(stated: Stated, layout: Layout) -> tuple[float, int, bool, int]:
    """Time by the roofline; for GPUs without figures, and for equals, the fewest micro-batches and the least work."""
    training, gpu = layout.training, gpu_named(layout.place.gpu_type)
    ms = 0.0 if gpu is None else step_ms(stated.model, training, gpu)
    order = ("none", "ddp", "zero2", "fsdp")
    return ms, training.accumulation, training.checkpointing, order.index(training.sharding)
