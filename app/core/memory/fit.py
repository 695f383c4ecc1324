"""From allocated bytes to "will it fit": three numbers that are never mixed, each with its uncertainty.

`allocated` is comparable with `torch.cuda.max_memory_allocated()`. `reserved` adds what the caching allocator cannot
use for want of a large enough piece, and is comparable with `max_memory_reserved()`. `process` adds the CUDA context
and the loaded kernels, and is comparable with what the driver shows and with the capacity of a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.core.memory.architecture import Architecture
from app.core.memory.predict import Peak, peak_of
from app.core.memory.semantics import DEFAULT, MIB, Semantics
from app.core.memory.training import Training
from app.errors import InvalidInput

Verdict = Literal["fits", "tight", "no"]

FRAGMENTATION_MEDIAN = 0.10
FRAGMENTATION_HIGH = 0.28
"""Reserved over allocated, less one: median and 90th percentile of 31 runs on a T4 (fitcheck-llm 0.3.1, MIT)."""

FRAGMENTATION_FSDP = FRAGMENTATION_HIGH
"""FSDP gathers weights on a stream of its own, and blocks that two streams used come back late (PyTorch's notes on
`limit_all_gathers`): to be sure to fit, the unlucky case is assumed."""

CONTEXT_BYTES = 500 * MIB
"""CUDA context and kernels: 141 MiB on a T4, 300 to 600 MiB on A100 and H100 with PyTorch 2."""

UNSHIPPED_UNCERTAINTY = 0.25
"""Of `allocated`, for families whose module transformers does not have; elsewhere the profile says."""


@dataclass(frozen=True, slots=True)
class Range:
    """A number of bytes and the bounds that it is expected within."""

    low: int
    expected: int
    high: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """The three numbers for one GPU, the phases behind them, and the smallest capacity that is sure to be enough."""

    peak: Peak
    allocated: Range
    reserved: Range
    process: Range
    needed: int


def estimate(
    model: Architecture, training: Training, semantics: Semantics = DEFAULT, *, context_bytes: int = CONTEXT_BYTES
) -> Estimate:
    """Predicts all three. Raises InvalidInput that names the field of a configuration that cannot be."""
    if context_bytes < 0:
        raise InvalidInput(f"context_bytes is {context_bytes}: it is never negative", param="context_bytes")
    peak = peak_of(model, training, semantics)
    doubt = semantics.uncertainty if model.form.shipped else max(semantics.uncertainty, UNSHIPPED_UNCERTAINTY)
    wasted = FRAGMENTATION_FSDP if training.sharding == "fsdp" else FRAGMENTATION_MEDIAN
    return estimate_of_peak(peak, doubt, context_bytes=context_bytes, wasted=wasted)


def estimate_of_peak(
    peak: Peak, doubt: float, *, context_bytes: int = CONTEXT_BYTES, wasted: float = FRAGMENTATION_MEDIAN
) -> Estimate:
    """All three from the allocated bytes, which may be off by this fraction either way. `wasted`: of them, by the
    allocator, where it is to be sure to fit."""
    middle = peak.allocated
    allocated = Range(round(middle * (1 - doubt)), middle, round(middle * (1 + doubt)))
    reserved = Range(
        allocated.low,
        round(middle * (1 + FRAGMENTATION_MEDIAN)),
        round(middle * (1 + max(FRAGMENTATION_HIGH, FRAGMENTATION_MEDIAN + doubt))),
    )
    process = Range(*(each + context_bytes for each in (reserved.low, reserved.expected, reserved.high)))
    return Estimate(peak, allocated, reserved, process, allocated.high + round(middle * wasted) + context_bytes)


def verdict(estimated: Estimate, capacity_bytes: int) -> Verdict:
    """`fits` when even an unlucky run stays below the capacity that the driver reports; `no` when not even a lucky one
    does; `tight` between the two, where nothing should be rented without a measurement.

    Raises InvalidInput for a capacity that no GPU has.
    """
    if capacity_bytes <= 0:
        raise InvalidInput(f"capacity_bytes is {capacity_bytes}: it must be a positive number", param="capacity_bytes")
    if estimated.needed <= capacity_bytes:
        return "fits"
    return "no" if estimated.process.low > capacity_bytes else "tight"
