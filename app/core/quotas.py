"""Quotas of projects in a shared pool: what each is sure to get, what it may borrow, and whose turn it is.

A quota is whole nodes by kind, a virtual cluster as in HiveD (OSDI 2020): quotas in single GPUs promise what scattered
jobs make unreachable. A virtual node is bound to a real one while a guaranteed job is on it, and to another later. So
whatever would fit a project's private cluster of that size, packed by the same rule, has its place in the pool as soon
as the spot jobs there have ended: within the grace. All else of the pool, idle GPUs of bound nodes too, is lent to
spot jobs, which are ended to reclaim it (`app.core.eviction`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

USAGE_HALF_LIFE_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class NodeQuota:
    """So many whole nodes of a kind for a project."""

    project: str
    kind: str
    nodes: int


@dataclass(frozen=True, slots=True)
class PoolNode:
    """A node of the pool with so many GPUs; those of a kind all have as many."""

    node_id: str
    kind: str
    gpus: int


class Admission(StrEnum):
    """As what a job may run now."""

    GUARANTEED = "guaranteed"  # within the quota: its places are known, spot jobs there have to go
    BORROWED = "borrowed"  # beyond it: as spot, on what is idle
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class QuotaGrant:
    """`places`: GPUs by node, for a guaranteed job alone. `words`: the inequality behind it."""

    admission: Admission
    words: str
    places: Mapping[str, int]


class QuotaPool:
    """Who holds what of the quotas. `grant` changes nothing; `take` and `give` say what was done."""

    def __init__(self, nodes: Iterable[PoolNode], quotas: Sequence[NodeQuota]) -> None:
        """Raises ValueError for quotas that together are more than the pool, or below zero, and for nodes of one kind
        with different numbers of GPUs."""
        self._nodes = {node.node_id: node for node in nodes}
        sizes = {(node.kind, node.gpus) for node in self._nodes.values()}
        if len(sizes) > len({kind for kind, _ in sizes}):
            raise ValueError("nodes of one kind have different numbers of GPUs")
        there = Counter(node.kind for node in self._nodes.values())
        promised: Counter[str] = Counter()
        self._quotas: Counter[tuple[str, str]] = Counter()
        for quota in quotas:
            if quota.nodes < 0:
                raise ValueError(f"{quota.project} cannot have {quota.nodes} nodes")
            promised[quota.kind] += quota.nodes
            self._quotas[quota.project, quota.kind] += quota.nodes
        for kind, count in promised.items():
            if count > there[kind]:
                raise ValueError(f"{count} nodes of {kind} are promised, {there[kind]} are there")
        self._used: dict[str, dict[str, int]] = {}  # by project and bound node: GPUs of guaranteed jobs
        self._jobs: dict[str, tuple[str, Mapping[str, int]]] = {}

    def grant(
        self, project: str, kind: str, gpus: int, parts: int = 1, prefer: Sequence[str] = (), may_borrow: bool = True
    ) -> QuotaGrant:
        """As what a job of so many parts with so many GPUs each may run. `prefer`: unbound nodes to bind first, such as
        those where the least would be lost; others follow by id. Raises ValueError for no GPUs or parts."""
        if gpus < 1 or parts < 1:
            raise ValueError(f"{parts} parts of {gpus} GPUs are no job")
        mine = self._bound(project, kind)
        quota = self._quotas[project, kind]
        places = self._packed(kind, gpus, parts, mine, quota, prefer)
        about = f"{parts} x {gpus} GPUs of {kind} for {project}: {len(mine)} of its {quota} nodes are in use"
        if places is not None:
            return QuotaGrant(
                Admission.GUARANTEED, f"{about}; it needs {len(places.keys() - mine.keys())} more", places
            )
        if may_borrow:
            return QuotaGrant(Admission.BORROWED, f"{about}, and what is left of them is too little; as spot", {})
        return QuotaGrant(Admission.REFUSED, f"{about}, and what is left of them is too little", {})

    def take(self, job_id: str, project: str, places: Mapping[str, int]) -> None:
        """A guaranteed job holds these. Raises ValueError where a node is another project's, or has too few GPUs."""
        if job_id in self._jobs:
            raise ValueError(f"{job_id} holds GPUs already")
        mine = self._used.get(project, {})
        for node_id, gpus in places.items():
            other = any(node_id in used for one, used in self._used.items() if one != project)
            if other or gpus < 1 or mine.get(node_id, 0) + gpus > self._nodes[node_id].gpus:
                raise ValueError(f"{project} cannot take {gpus} GPUs of {node_id}")
        used = self._used.setdefault(project, {})
        for node_id, gpus in places.items():
            used[node_id] = used.get(node_id, 0) + gpus
        self._jobs[job_id] = project, dict(places)

    def give(self, job_id: str) -> None:
        """A guaranteed job has ended; a node with no other is bound no more. Raises KeyError for one that is not."""
        project, places = self._jobs.pop(job_id)
        used = self._used[project]
        for node_id, gpus in places.items():
            used[node_id] -= gpus
            if used[node_id] == 0:
                del used[node_id]

    def idle(self, node_id: str) -> int:
        """GPUs of a node that no guaranteed job holds: spot jobs may have them."""
        return self._nodes[node_id].gpus - sum(used.get(node_id, 0) for used in self._used.values())

    def _bound(self, project: str, kind: str) -> dict[str, int]:
        used = self._used.get(project, {})
        return {node_id: gpus for node_id, gpus in used.items() if self._nodes[node_id].kind == kind}

    def _packed(
        self, kind: str, gpus: int, parts: int, mine: Mapping[str, int], quota: int, prefer: Sequence[str]
    ) -> dict[str, int] | None:
        """Part after part onto the fullest node of the project where it fits, of equals the one that was bound first,
        else onto a further node. Ids of real nodes must not matter here, or a private cluster would be packed another
        way and the promise broken."""
        used = dict(mine)
        places: dict[str, int] = {}
        spare = self._unbound(kind, prefer)
        for _ in range(parts):
            fitting = [one for one, held in used.items() if held + gpus <= self._nodes[one].gpus]
            if fitting:
                node_id = max(fitting, key=used.__getitem__)
            elif len(used) < quota and spare and gpus <= self._nodes[spare[-1]].gpus:
                node_id = spare.pop()
            else:
                return None
            used[node_id] = used.get(node_id, 0) + gpus
            places[node_id] = places.get(node_id, 0) + gpus
        return places

    def _unbound(self, kind: str, prefer: Sequence[str]) -> list[str]:
        """Nodes of no project, the one to bind first at the end."""
        bound = {node_id for used in self._used.values() for node_id in used}
        first = {node_id: place for place, node_id in enumerate(prefer)}
        free = [one.node_id for one in self._nodes.values() if one.kind == kind and one.node_id not in bound]
        return sorted(free, key=lambda one: (first.get(one, len(first)), one), reverse=True)


@dataclass(frozen=True, slots=True)
class PastUsage:
    """GPU-milliseconds by kind that a project has used, which halve with every USAGE_HALF_LIFE_MS since `at_ms`."""

    gpu_ms: Mapping[str, float]
    at_ms: int = 0

    def used(self, held: Mapping[str, int], now_ms: int) -> PastUsage:
        """As of now, when so many GPUs were held since `at_ms`; that stretch itself begins to fade from now on."""
        for_ms = max(0, now_ms - self.at_ms)
        fading = 0.5 ** (for_ms / USAGE_HALF_LIFE_MS)
        kinds = self.gpu_ms.keys() | held.keys()
        faded = {kind: self.gpu_ms.get(kind, 0.0) * fading + held.get(kind, 0) * for_ms for kind in kinds}
        return PastUsage(faded, max(now_ms, self.at_ms))


def by_dominant_share(
    usage: Mapping[str, PastUsage], totals: Mapping[str, int], now_ms: int
) -> list[tuple[float, str]]:
    """Projects by dominant share (Ghodsi et al., NSDI 2011), the lowest first: it is their turn. The share of a kind is
    what was used of it, faded, by what the pool has of it in a half-life. A kind that the pool lacks counts nothing."""
    shares = []
    for project, one in usage.items():
        faded = one.used({}, now_ms).gpu_ms
        parts = [gpu_ms / (totals[kind] * USAGE_HALF_LIFE_MS) for kind, gpu_ms in faded.items() if totals.get(kind)]
        shares.append((max(parts, default=0.0), project))
    return sorted(shares)
