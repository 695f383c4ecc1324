"""The hosts of a played pool, by how many of their GPUs are free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from app.core.topology import Domain, SwitchRule, choose
from app.simulator.defragmenting.jobs import HOST_GPUS


class PoolHosts:
    """Hosts of HOST_GPUS GPUs under switches of so many hosts each."""

    def __init__(self, hosts: int, switch_hosts: int) -> None:
        self.names = [f"host_{number:05d}" for number in range(hosts)]
        self.free = dict.fromkeys(self.names, HOST_GPUS)
        self.domains: dict[str, Domain] = {
            name: ("", f"switch_{number // switch_hosts:03d}") for number, name in enumerate(self.names)
        }
        self._with_free: list[set[str]] = [set() for _ in range(HOST_GPUS)] + [set(self.names)]

    @property
    def partly_used(self) -> int:
        """Hosts of which some GPUs are taken, and some are free."""
        return sum(map(len, self._with_free[1:HOST_GPUS]))

    @property
    def used_gpus(self) -> int:
        return sum((HOST_GPUS - free) * len(hosts) for free, hosts in enumerate(self._with_free))

    def take(self, host: str, gpus: int) -> None:
        """Raises RuntimeError where they are not free; of less than none they are given back."""
        free = self.free[host]
        if not 0 <= free - gpus <= HOST_GPUS:
            raise RuntimeError(f"{host} has {free} free GPUs, and {gpus} of them are given out")
        self._with_free[free].discard(host)
        self.free[host] = free - gpus
        self._with_free[free - gpus].add(host)

    def tightest(self, gpus: int, shut: Collection[str]) -> str | None:
        """The host that has the fewest GPUs left then, of those that are not shut; ties by name."""
        for hosts in self._with_free[gpus:]:
            found = min((host for host in hosts if host not in shut), default=None)
            if found is not None:
                return found
        return None

    def whole(self, number: int, shut: Collection[str]) -> list[str] | None:
        """So many hosts that are free as a whole, under as few switches as can be."""
        by_switch: dict[Domain, list[str]] = {}
        for host in sorted(self._with_free[HOST_GPUS]):
            if host not in shut:
                by_switch.setdefault(self.domains[host], []).append(host)
        free = {switch: len(hosts) for switch, hosts in by_switch.items()}
        taken = choose(SwitchRule.FEWEST, free, {}, number)
        if taken is None:
            return None
        return [host for switch, count in taken.items() for host in by_switch[switch][:count]]

    def emptiest(self, number: int, shut: Collection[str]) -> list[str]:
        """Those with the most free GPUs now, whoever is there."""
        free = Counter({host: 0 if host in shut else free for host, free in self.free.items()})
        return sorted(free, key=lambda host: (-free[host], host))[:number]
