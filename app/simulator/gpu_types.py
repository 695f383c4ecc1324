"""Several types of GPU on offer, and jobs that take any of them and train faster on some than on others.

Prices are shares of an A100's: of Modal's list of 2026-05-07 (`providers/modal/catalogue.py`), of the Allpass paper's
Table 2 for the marketplace, and of Lambda's list of 2025. A trace's run times are those on an A100. How much faster a
job is on another type is drawn: some wait for arithmetic, some for memory, some for neither [assumed].
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from app.core.gpu_speeds import SAME, GpuSpeeds
from app.core.model.node import Tier
from app.core.roofline import GPUS, gpu_named

if TYPE_CHECKING:
    from app.simulator.scenario import Task

GpuTypes = Literal["one", "several", "unseen"]
GIB = 1024**3
USUAL = "A100"
_STATED_SHARE = 0.5  # [assumed] of the jobs state their training, so that their speeds are predicted
_ERROR = 0.25  # [assumed] of the logarithm of what is predicted of a type's speed
_MEMORY = ((16, 0.4), (40, 0.3), (80, 0.3))  # [assumed] GiB that a job needs on each GPU, and the share of such jobs


@dataclass(frozen=True, slots=True)
class SimulatedGpu:
    """A type on offer. `shares`: its price by tier, of an A100's there; a tier that lacks it does not have it."""

    name: str
    memory_bytes: int
    shares: Mapping[Tier, float]


def _gpu(name: str, gib: int, modal: float | None, vast: float | None, lambda_: float | None) -> SimulatedGpu:
    shares = {Tier.SERVERLESS: modal, Tier.MARKETPLACE: vast, Tier.CONVENTIONAL: lambda_}
    return SimulatedGpu(
        name, gib * GIB, MappingProxyType({tier: share for tier, share in shares.items() if share is not None})
    )


ONE = (_gpu(USUAL, 80, 1.0, 1.0, 1.0),)
SEVERAL = (
    *ONE,
    _gpu("T4", 16, 0.281, 0.130, None),
    _gpu("V100", 16, None, 0.194, None),
    _gpu("L4", 24, 0.381, 0.352, None),
    _gpu("A10", 24, 0.525, 0.241, 0.581),
    _gpu("RTX 4090", 24, None, 0.389, None),
    _gpu("L40S", 48, 0.930, 0.630, None),
    _gpu("H100", 80, 1.882, 1.898, 1.930),
)


def gpus_on_offer(kinds: GpuTypes) -> tuple[SimulatedGpu, ...]:
    """Those of the option `--gpu-types`."""
    return ONE if kinds == "one" else SEVERAL


@dataclass(frozen=True, slots=True)
class TaskSpeeds:
    """How long a job takes on other types than an A100: ratios of rates to the power of `arithmetic` and `memory`.

    `seen`: what policies are told; None: that all are as fast. `needs_bytes`: of memory, on each GPU."""

    arithmetic: float
    memory: float
    needs_bytes: int
    seen: GpuSpeeds | None
    _known: dict[str, int] = field(default_factory=dict, compare=False)

    def permille(self, gpu_type: str) -> int:
        """Its true time there, in permille of that on an A100."""
        if gpu_type not in self._known:
            self._known[gpu_type] = _permille(gpu_type, self.arithmetic, self.memory)
        return self._known[gpu_type]

    def slowest(self) -> int:
        """How many times as long it may take, rounded up."""
        return 1 + max(self.permille(gpu.name) for gpu in SEVERAL) // SAME


def with_speeds(tasks: Iterable[Task], kinds: GpuTypes, seed: int) -> tuple[Task, ...]:
    """The same seed draws the same for each job, whether policies see it or not."""
    chance = random.Random(f"{seed} speeds")  # noqa: S311 - a simulation
    return tuple(replace(task, speeds=_drawn(chance, sees=kinds == "several")) for task in tasks)


def _drawn(chance: random.Random, *, sees: bool) -> TaskSpeeds:
    arithmetic = chance.uniform(0, 0.9)
    memory = chance.uniform(0, 1 - arithmetic)
    needs = chance.choices([gib for gib, _ in _MEMORY], [share for _, share in _MEMORY])[0]
    stated = chance.random() < _STATED_SHARE
    told = {
        name: round(_permille(name, arithmetic, memory) * math.exp(chance.gauss(0, _ERROR)))
        for name in sorted(GPUS)
        if name != USUAL.lower()
    }
    times = tuple(sorted(told.items())) if stated else ()
    return TaskSpeeds(arithmetic, memory, needs * GIB, GpuSpeeds(USUAL.lower(), times) if sees else None)


def _permille(gpu_type: str, arithmetic: float, memory: float) -> int:
    usual, other = GPUS[USUAL.lower()], gpu_named(gpu_type)
    if other is None:
        return SAME
    ratio: float = (usual.half_tflops / other.half_tflops) ** arithmetic * (
        usual.memory_gbs / other.memory_gbs
    ) ** memory
    return max(1, round(SAME * ratio))
