"""A cluster as placement sees it, kept up to date by what is taken and given back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.core.placement.sorted_keys import Key
from app.core.placement.stock import Candidate, Order, Stock


class Ranker(StrEnum):
    """In which order nodes are tried; the package says more."""

    LITERAL = "literal"
    OURS = "ours"


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node, or an offer of one. `idle`: GPUs that nobody holds. `price_micros`: of one GPU for an hour.

    `place`: the region of a provider whose nodes share a private network; None where they do not.
    """

    node_id: str
    memory_bytes: int
    idle: int
    gpu_type: str = ""
    price_micros: int = 0
    place: str | None = None


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """One plan of a job: so many GPUs with at least so much memory each, of a type where it matters."""

    gpus: int
    memory_bytes: int
    gpu_type: str | None = None


@dataclass(frozen=True, slots=True)
class NodeShare:
    """So many GPUs of a node."""

    node_id: str
    gpus: int


@dataclass(frozen=True, slots=True)
class FoundPlace:
    """Where the first of the needs that can be met would be met; nothing is taken yet."""

    need: GpuNeed
    shares: tuple[NodeShare, ...]


class Cluster:
    """Nodes with their idle GPUs. `find` changes nothing; `take` and `give` say what was done."""

    def __init__(self, machines: Iterable[ClusterNode], ranker: Ranker) -> None:
        self._ranker = ranker
        self._order: Order = "idle" if ranker is Ranker.LITERAL else "memory"
        self._machines: dict[str, ClusterNode] = {}
        self._idle: dict[str, int] = {}
        self._all = Stock()
        self._places: dict[str, Stock] = {}
        for machine in machines:
            self.add(machine)

    def add(self, machine: ClusterNode) -> None:
        """A node has come. Raises ValueError for one that is there, and for less than no GPUs."""
        if machine.node_id in self._machines or machine.idle < 0:
            raise ValueError(f"{machine.node_id} with {machine.idle} idle GPUs cannot be added")
        self._machines[machine.node_id] = machine
        self._idle[machine.node_id] = machine.idle
        self._put(machine, machine.idle)

    def remove(self, node_id: str) -> None:
        """A node has gone, with whatever was on it."""
        machine = self._machines.pop(node_id)
        self._drop(machine, self._idle.pop(node_id))

    def idle(self, node_id: str) -> int:
        """GPUs of the node that nobody holds."""
        return self._idle[node_id]

    def take(self, shares: Iterable[NodeShare]) -> None:
        """These GPUs are held from now on. Raises ValueError, with nothing taken, where a node has fewer idle."""
        wanted = list(shares)
        for share in wanted:
            if not 0 < share.gpus <= self._idle[share.node_id]:
                raise ValueError(f"{share.node_id} has {self._idle[share.node_id]} idle GPUs, not {share.gpus}")
        for share in wanted:
            self._change(share.node_id, -share.gpus)

    def give(self, shares: Iterable[NodeShare]) -> None:
        """These GPUs are idle again."""
        for share in shares:
            self._change(share.node_id, share.gpus)

    def find(self, needs: Sequence[GpuNeed]) -> FoundPlace | None:
        """Where the first of these needs (the best plan first) that can be met is met best."""
        for need in needs:
            shares = self._literal(need) if self._ranker is Ranker.LITERAL else self._ours(need)
            if shares is not None:
                return FoundPlace(need, shares)
        return None

    def _literal(self, need: GpuNeed) -> tuple[NodeShare, ...] | None:
        if not self._all.enough(need.gpus, need.memory_bytes, need.gpu_type):
            return None
        whole = self._all.tightest(need.gpus, need.memory_bytes, need.gpu_type, self._order)
        if whole is not None:
            return (NodeShare(whole[2][1], need.gpus),)
        return self._together(self._all, need)

    def _ours(self, need: GpuNeed) -> tuple[NodeShare, ...] | None:
        whole = self._all.tightest(need.gpus, need.memory_bytes, need.gpu_type, self._order)
        if whole is not None:
            return (NodeShare(whole[2][1], need.gpus),)
        best: tuple[int, int, str] | None = None
        chosen: tuple[NodeShare, ...] | None = None
        for place, stock in self._places.items():
            if not stock.enough(need.gpus, need.memory_bytes, need.gpu_type):
                continue
            shares = self._together(stock, need)
            rank = len(shares), sum(self._machines[one.node_id].price_micros * one.gpus for one in shares), place
            if best is None or rank < best:
                best, chosen = rank, shares
        return chosen

    def _together(self, stock: Stock, need: GpuNeed) -> tuple[NodeShare, ...]:
        """All of the node with the most, and on with what is left, until one node has it all. There are enough."""
        shares: list[NodeShare] = []
        left = need.gpus
        taken: list[tuple[Candidate, ClusterNode]] = []
        while left:
            found = stock.tightest(left, need.memory_bytes, need.gpu_type, self._order)
            count = left
            if found is None:
                found = stock.largest(need.memory_bytes, need.gpu_type, self._order)
                if found is None:
                    raise RuntimeError(f"{left} of {need.gpus} GPUs are missing")
                count = found[0]
            machine = self._machines[found[2][1]]
            stock.remove(machine.memory_bytes, machine.gpu_type, found[0], found[2])
            taken.append((found, machine))
            shares.append(NodeShare(machine.node_id, count))
            left -= count
        for found, machine in taken:  # it was a question only
            stock.add(machine.memory_bytes, machine.gpu_type, found[0], found[2])
        return tuple(shares)

    def _change(self, node_id: str, by: int) -> None:
        machine, before = self._machines[node_id], self._idle[node_id]
        self._drop(machine, before)
        self._put(machine, before + by)
        self._idle[node_id] = before + by

    def _put(self, machine: ClusterNode, idle: int) -> None:
        key = self._key(machine)
        self._all.add(machine.memory_bytes, machine.gpu_type, idle, key)
        if machine.place is not None and self._ranker is Ranker.OURS:
            stock = self._places.get(machine.place)
            if stock is None:
                stock = self._places[machine.place] = Stock()
            stock.add(machine.memory_bytes, machine.gpu_type, idle, key)

    def _drop(self, machine: ClusterNode, idle: int) -> None:
        key = self._key(machine)
        self._all.remove(machine.memory_bytes, machine.gpu_type, idle, key)
        if machine.place is not None and self._ranker is Ranker.OURS:
            self._places[machine.place].remove(machine.memory_bytes, machine.gpu_type, idle, key)

    def _key(self, machine: ClusterNode) -> Key:
        return (0 if self._ranker is Ranker.LITERAL else machine.price_micros), machine.node_id
