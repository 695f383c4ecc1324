"""Which hosts of a team's own are there, who has which of their GPUs, and what they offer, as the service tells it.

Pure but for its own books: it reads no clock and draws nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from app.core.model.offer import Offer
from app.core.model.pool import WEEK_MINUTES, OwnHost, Pool
from app.core.pools import ends_ms as pool_ends_ms
from app.core.pools import free_of, is_open, offers_of, used_gpus
from app.simulator.own.machines import OwnMachines

_MINUTE_MS = 60_000
_WEEK_MS = WEEK_MINUTES * _MINUTE_MS
_MONDAY_MS = 4 * 24 * 60 * _MINUTE_MS  # the clock of a simulation begins on a Thursday, as that of Unix does


@dataclass(slots=True)
class _Present:
    """A host that has joined. `leaves_ms`: when nothing may run there any more, as was said at `drained_ms`; `dark_ms`:
    since when it is dead, which nobody knows yet; `silent`: it has not been heard of for so long that it is given
    nothing new."""

    leaves_ms: int | None = None
    drained_ms: int | None = None
    dark_ms: int | None = None
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Placed:
    """What a node has of a host."""

    host_id: str
    gpus: tuple[int, ...]
    until_ms: int | None  # by the walltime of its pool


class OwnFleet:
    """`placed`: by node."""

    def __init__(self, own: OwnMachines) -> None:
        self.pools = {one.pool.name: one for one in own.pools}
        self.hosts = {host.host_id: host for host in own.hosts}
        self.placed: dict[str, Placed] = {}
        self._present: dict[str, _Present] = {}

    # What there is

    def offers(self, now_ms: int) -> tuple[Offer, ...]:
        """What is free, to whom and when its owner says."""
        found = offers_of((one.pool for one in self.pools.values()), self._views(), now_ms)
        return tuple(sorted(found, key=lambda offer: offer.key))

    def has(self, offer: Offer, now_ms: int) -> bool:
        """Whether it may be had: an earlier action of the same plan may have taken the GPUs, or the pool's last."""
        host_id, _, kind = offer.host.partition("/")
        views = list(self._views())
        host = next((one for one in views if one.host_id == host_id), None)
        if host is None or not host.is_open:
            return False
        pool = self.pools[host.pool].pool
        used = used_gpus(views).get(pool.name, 0) + offer.gpu_count
        return (
            is_open(pool, now_ms)
            and (pool.most_gpus is None or used <= pool.most_gpus)
            and len(free_of(host, kind)) >= offer.gpu_count
        )

    def _views(self) -> Iterator[OwnHost]:
        taken: dict[str, tuple[int, ...]] = {}
        for one in self.placed.values():
            taken[one.host_id] = (*taken.get(one.host_id, ()), *one.gpus)
        for host_id, present in self._present.items():
            opened = present.leaves_ms is None and not present.silent
            yield replace(self.hosts[host_id], taken=taken.get(host_id, ()), is_open=opened)

    def is_here(self, host_id: str) -> bool:
        return host_id in self._present

    def is_dark(self, node_id: str) -> bool:
        """Whether the node's host is dead, whoever knows."""
        placed = self.placed.get(node_id)
        present = None if placed is None else self._present.get(placed.host_id)
        return present is not None and present.dark_ms is not None

    def nodes_on(self, host_id: str) -> list[str]:
        return [node_id for node_id, one in self.placed.items() if one.host_id == host_id]

    def nodes_of_pool(self, name: str) -> list[str]:
        return [node_id for node_id, one in self.placed.items() if self.hosts[one.host_id].pool == name]

    # What is taken

    def take(self, node_id: str, offer: Offer, now_ms: int) -> None:
        """The node has GPUs of the offer's host."""
        host_id, _, kind = offer.host.partition("/")
        host = next(one for one in self._views() if one.host_id == host_id)
        gpus = tuple(gpu.index for gpu in free_of(host, kind)[: offer.gpu_count])
        walltime_ms = self.pools[host.pool].walltime_ms
        self.placed[node_id] = Placed(host_id, gpus, None if walltime_ms is None else now_ms + walltime_ms)

    def give_back(self, node_id: str) -> None:
        """Its GPUs are there for others at once."""
        self.placed.pop(node_id, None)

    def ends_ms(self, node_id: str, now_ms: int) -> int | None:
        """When the node has to be gone, as far as is known: its host leaves, its pool closes, its time is over."""
        placed = self.placed[node_id]
        present = self._present.get(placed.host_id)
        pool = self.pools[self.hosts[placed.host_id].pool].pool
        known = (placed.until_ms, None if present is None else present.leaves_ms, pool_ends_ms(pool, now_ms))
        return min((one for one in known if one is not None), default=None)

    def drained_ms(self, node_id: str) -> int | None:
        """Since when the node's owner wants it empty."""
        present = self._present.get(self.placed[node_id].host_id)
        return None if present is None else present.drained_ms

    # What becomes of hosts

    def join(self, host_id: str) -> None:
        self._present[host_id] = _Present()

    def drain(self, host_id: str, leaves_ms: int, now_ms: int) -> None:
        present = self._present[host_id]
        present.leaves_ms = leaves_ms
        present.drained_ms = now_ms if present.drained_ms is None else present.drained_ms

    def unplug(self, host_id: str, now_ms: int) -> None:
        self._present[host_id].dark_ms = now_ms

    def dark_since(self, host_id: str) -> int | None:
        present = self._present.get(host_id)
        return None if present is None else present.dark_ms

    def leaves_ms(self, host_id: str) -> int | None:
        present = self._present.get(host_id)
        return None if present is None else present.leaves_ms

    def fall_silent(self, host_id: str) -> None:
        self._present[host_id].silent = True

    def leave(self, host_id: str) -> None:
        """It is none of ours any more."""
        self._present.pop(host_id, None)


def next_turn_ms(pool: Pool, now_ms: int, before_ms: int) -> int | None:
    """When its hours begin or end next, or end in `before_ms`; None: it has none."""
    into_week = (now_ms - _MONDAY_MS) % _WEEK_MS
    turns = [
        turn
        for one in pool.hours
        for turn in (one.from_minute * _MINUTE_MS, one.to_minute * _MINUTE_MS, one.to_minute * _MINUTE_MS - before_ms)
    ]
    return min((now_ms + ((turn - into_week - 1) % _WEEK_MS) + 1 for turn in turns), default=None)
