"""What is free together on hosts of own pools, and how many requests of usual shapes would fit there now. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.core.fragmentation import FreeRoom, StrandedRoom, gangs_in_racks, gangs_that_fit, requests_that_fit
from app.core.model.pool import JOINED, OwnHost, Pool
from app.core.pools import free_of, gives, kinds_of, shared_host, used_gpus

# GPUs, and processors with them: from a small job to a whole host (the SpotGPU paper's instances, section 3).
REQUESTS = ((1, 8), (2, 16), (4, 32), (4, 64), (8, 64), (8, 128))
GANGS = (128, 256)  # in whole hosts of eight
_HOST_GPUS, _HOST_CPUS = 8, 64


@dataclass(frozen=True, slots=True)
class ShapeFit:
    """Of requests of so many GPUs and processors, each on one host."""

    gpus: int
    cpus: int
    room: StrandedRoom


@dataclass(frozen=True, slots=True)
class GangFit:
    """Of gangs of so many GPUs in hosts of `host_gpus` and `host_cpus`, each gang within one switch. `in_rack`: each
    within one rack; None where nobody says any."""

    gpus: int
    host_gpus: int
    host_cpus: int
    room: StrandedRoom
    in_rack: StrandedRoom | None = None


@dataclass(frozen=True, slots=True)
class FragmentedPools:
    """`hosts` that take jobs now, with their GPUs that nobody else uses; on `whole` of them all of these are free.
    `switches`: of these hosts, where their labels or those of their pools say it; of each pool, hosts that
    do not are taken to be under one. `racks`: likewise; 0 where nobody says any."""

    hosts: int
    whole: int
    gpus: int
    free_gpus: int
    switches: int
    requests: tuple[ShapeFit, ...]
    gangs: tuple[GangFit, ...]
    racks: int = 0


def fragmented_pools(
    pools: Iterable[Pool],
    hosts: Sequence[OwnHost],
    switches: Mapping[str, str],
    now_ms: int,
    racks: Mapping[str, str] | None = None,
) -> FragmentedPools:
    """Of pools that give something now. `switches`, `racks`: by host; those that are not there have their pool's
    name."""
    racks = racks or {}
    known = {pool.name: pool for pool in pools if pool.launcher == JOINED and gives(pool, now_ms)}
    here = [host for host in hosts if host.is_open and host.gpus and host.pool in known]
    rooms = _within_limits(known, here, _rooms(here, switches, racks), used_gpus(hosts))
    whole = [host for host in here if all(_is_free(host, kind) for kind in kinds_of(host))]
    free = [room for _, room in rooms]
    has_racks = any(host.host_id in racks for host in here)
    return FragmentedPools(
        hosts=len(here),
        whole=len(whole),
        gpus=sum(not gpu.is_busy for host in here for gpu in host.gpus),
        free_gpus=sum(room.gpus for _, room in rooms),
        switches=len({switches.get(host.host_id, host.pool) for host in here}),
        requests=tuple(ShapeFit(gpus, cpus, requests_that_fit(free, gpus, 1000 * cpus)) for gpus, cpus in REQUESTS),
        gangs=tuple(
            GangFit(
                gpus,
                _HOST_GPUS,
                _HOST_CPUS,
                gangs_that_fit(free, gpus, _HOST_GPUS, 1000 * _HOST_CPUS),
                gangs_in_racks(free, gpus, _HOST_GPUS, 1000 * _HOST_CPUS) if has_racks else None,
            )
            for gpus in GANGS
        ),
        racks=len({racks.get(host.host_id, host.pool) for host in here}) if has_racks else 0,
    )


def _rooms(
    hosts: Iterable[OwnHost], switches: Mapping[str, str], racks: Mapping[str, str]
) -> list[tuple[str, FreeRoom]]:
    """By pool: of each kind of GPU on each host, with the part of its processors that is cut with free GPUs. GPUs of
    two kinds, or of two pools, are in no gang together, so a switch is one for each."""
    found = []
    for host in hosts:
        for kind in kinds_of(host):
            free = len(free_of(host, kind))
            cpus_milli = 1000 * host.cpus * free // len(host.gpus)
            switch = f"{host.pool}/{switches.get(host.host_id, '')}/{kind}"
            rack = f"{host.pool}/{racks.get(host.host_id, '')}/{kind}"
            found.append((host.pool, FreeRoom(shared_host(host.host_id, kind), free, cpus_milli, switch, rack)))
    return found


def _within_limits(
    pools: Mapping[str, Pool],
    hosts: Iterable[OwnHost],
    rooms: Iterable[tuple[str, FreeRoom]],
    used: Mapping[str, int],
) -> list[tuple[str, FreeRoom]]:
    """No more of a pool than its owner lets be used; the largest rooms first, as whoever asks would have it best."""
    left = {
        name: pool.most_gpus - used.get(name, 0)
        for name in {host.pool for host in hosts}
        if (pool := pools[name]).most_gpus is not None
    }
    found = []
    for name, room in sorted(rooms, key=lambda one: (-one[1].gpus, one[1].node_id)):
        gpus = min(room.gpus, max(0, left.get(name, room.gpus)))
        if name in left:
            left[name] -= gpus
        cpus_milli = room.cpus_milli * gpus // room.gpus if room.gpus else 0
        found.append((name, FreeRoom(room.node_id, gpus, cpus_milli, room.switch, room.rack)))
    return found


def _is_free(host: OwnHost, kind: str) -> bool:
    return len(free_of(host, kind)) == sum(not gpu.is_busy for gpu in kinds_of(host)[kind])
