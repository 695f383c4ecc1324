"""What a simulation has of a team's own: pools, their hosts, and what happens to these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from app.core.gpu_names import family_of
from app.core.model.pool import HostGpu, OwnHost, Pool

GIB = 1024**3
_CPUS, _GPU_GIB, _HOST_GIB = 8, 80, 80  # for each GPU, as rented machines of a simulation have them
_SMALL_GIB = {"t4": 16, "v100": 16, "l4": 24, "a10": 24, "a10g": 24, "rtx3090": 24, "rtx4090": 24, "rtx5090": 32}
_LARGE_GIB = {"a6000": 48, "a40": 48, "l40": 48, "l40s": 48, "h200": 141, "b200": 180}


@dataclass(frozen=True, slots=True)
class SimulatedPool:
    """`walltime_ms`: after so long each machine there ends by itself; None: never."""

    pool: Pool
    walltime_ms: int | None = None


@dataclass(frozen=True, slots=True)
class HostEvent:
    """`join`: it is there from now on, also after it was away. `drain`: it takes nothing new, what runs there has
    `within_ms` to leave, and then it leaves. `unplug`: all that runs there is dead at once, and nobody is told."""

    at_ms: int
    host_id: str
    what: Literal["join", "drain", "unplug"]
    within_ms: int = 0


@dataclass(frozen=True, slots=True)
class OwnMachines:
    """`hosts` are the machines themselves; none is there before it joins."""

    pools: tuple[SimulatedPool, ...]
    hosts: tuple[OwnHost, ...]
    events: tuple[HostEvent, ...]

    @classmethod
    def for_good(cls, pools: Sequence[SimulatedPool], hosts: Sequence[OwnHost]) -> OwnMachines:
        """Hosts that are there from the beginning to the end."""
        return cls(tuple(pools), tuple(hosts), tuple(HostEvent(0, host.host_id, "join") for host in hosts))


def host_of(host_id: str, pool: str, gpus: int, gpu_type: str) -> OwnHost:
    """A machine with so many GPUs, and of all else as much as a rented one has."""
    family = family_of(gpu_type) or ""
    memory_bytes = (_SMALL_GIB | _LARGE_GIB).get(family, _GPU_GIB) * GIB
    return OwnHost(
        host_id=host_id,
        pool=pool,
        cpus=_CPUS * gpus,
        memory_bytes=_HOST_GIB * GIB * gpus,
        gpus=tuple(HostGpu(index, gpu_type, memory_bytes) for index in range(gpus)),
    )
