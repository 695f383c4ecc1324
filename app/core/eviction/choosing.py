"""Whom to end so that a guaranteed job fits that does not: feasibility first, then the rule.

A job of several parts (a gang) needs a set of nodes. It is found greedily: the node and the number of further parts
there whose cover costs least for each part, until all parts fit; then whoever is not needed after all is spared, the
dearest first. For one part the answer of `lost-work` is the cheapest node with its cheapest cover.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from types import MappingProxyType

from app.core.eviction.amounts import Amounts, how_often, plus, times
from app.core.eviction.placing import NodeRoom
from app.core.eviction.reserving import Reservation
from app.core.eviction.rules import Draws, EvictionRule, NodeCover, NodeQuestion, cover_on_node
from app.core.eviction.spot_job import Shrink, SpotJob
from app.core.eviction.words import fits_after, gpu_seconds, shown

NO_DRAWS: Draws = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class GuaranteedNeed:
    """A guaranteed job: so many parts, each on one node with at least these amounts."""

    job_id: str
    part: Amounts
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Victims:
    """Who ends, who shrinks and how, and the nodes on which the parts then fit. Nobody, where they fit as it is."""

    ended: tuple[str, ...]
    shrunk: Mapping[str, Shrink]
    places: Mapping[str, int]
    cost_gpu_us: int
    words: tuple[str, ...]

    def reservations(self, need: GuaranteedNeed, until_ms: int) -> list[Reservation]:
        """What is to be kept for the job until it starts."""
        return [
            Reservation(need.job_id, node_id, times(need.part, parts), until_ms)
            for node_id, parts in self.places.items()
        ]


@dataclass(frozen=True, slots=True)
class NoVictims:
    """Ending whoever may be ended does not make the job fit; so nobody is ended."""

    words: tuple[str, ...]


def choose_victims(
    need: GuaranteedNeed,
    rooms: Iterable[NodeRoom],
    jobs: Iterable[SpotJob],
    rule: EvictionRule,
    now_ms: int,
    draws: Draws = NO_DRAWS,
) -> Victims | NoVictims:
    """`rooms`: the nodes that the job may use, `free` without what is reserved for others. Raises ValueError for a
    need of nothing, KeyError for the rule `random` without a draw for each job."""
    if need.parts < 1:
        raise ValueError(f"{need.parts} parts are no job")
    search = _Search(need, rooms, jobs, now_ms)
    possible = search.possible_parts()
    if possible < need.parts:
        spared = f"; {search.protected} spot jobs are within their minimum run time" if search.protected else ""
        few = f"{possible} of {need.parts} parts of {shown(need.part)} would fit if every spot job ended{spared}"
        return NoVictims((few,))
    while search.fitting() < need.parts:
        if not search.take_best(rule, draws):
            return NoVictims((f"the rule {rule.value} finds no jobs to end on any node",))
    if rule is EvictionRule.LOST_WORK:
        search.spare_needless()
    return search.victims()


@dataclass(slots=True)
class _Taken:
    """A job that gives something: by ending, or by shrinking so."""

    job: SpotJob
    shrink: Shrink | None

    @property
    def frees(self) -> Mapping[str, Amounts]:
        return self.job.holds if self.shrink is None else self.shrink.frees

    def cost_gpu_us(self, now_ms: int) -> int:
        return self.job.ending_gpu_us(now_ms) if self.shrink is None else self.shrink.cost.at(now_ms)

    def words(self, now_ms: int) -> str:
        cost = self.job.cost if self.shrink is None else self.shrink.cost
        why = f", that is {cost.words}" if cost.words else ""
        doing = "ends" if self.shrink is None else "shrinks"
        return f"{self.job.job_id} {doing} for {gpu_seconds(self.cost_gpu_us(now_ms))}{why}"


class _Search:
    """The search under way: whoever is taken so far, by job id."""

    def __init__(self, need: GuaranteedNeed, rooms: Iterable[NodeRoom], jobs: Iterable[SpotJob], now_ms: int) -> None:
        self._need = need
        self._now_ms = now_ms
        self._rooms = {room.node_id: room.free for room in rooms}
        self._jobs: dict[str, list[SpotJob]] = defaultdict(list)
        self._taken: dict[str, _Taken] = {}
        self._words: list[str] = []
        self._free_parts = {node_id: how_often(need.part, free) for node_id, free in self._rooms.items()}
        self._all_free_parts = sum(self._free_parts.values())
        self.protected = 0
        for job in jobs:
            self._add(job)

    def _add(self, job: SpotJob) -> None:
        if self._now_ms < job.protected_until_ms:
            self.protected += 1
            return
        for node_id in job.holds:
            if node_id in self._rooms:
                self._jobs[node_id].append(job)

    def possible_parts(self) -> int:
        """How many parts would fit if every job that may be ended were."""
        emptied = {
            node_id: _sum(free, [job.holds[node_id] for job in self._jobs.get(node_id, ())])
            for node_id, free in self._rooms.items()
        }
        return sum(how_often(self._need.part, free) for free in emptied.values())

    def fitting(self) -> int:
        """How many parts fit by now."""
        more = sum(self._parts_on(node_id) - self._free_parts[node_id] for node_id in self._touched())
        return self._all_free_parts + more

    def take_best(self, rule: EvictionRule, draws: Draws) -> bool:
        """Take the best cover of any node, or tell that there is none."""
        further = self._need.parts - self.fitting() if rule is EvictionRule.LOST_WORK else 1
        best = nsmallest(2, self._covers(rule, draws, further), key=lambda one: one.rank)
        if not best:
            return False
        node_id = best[0].rank[-1]
        jobs = {job.job_id: job for job in self._jobs[node_id]}
        for option in best[0].cover.options:
            job = jobs[option.job_id]
            self._taken[job.job_id] = _Taken(job, None if option.shrink is None else job.shrinks[option.shrink])
        self._words += [_first_of(rule, best)] if len(best) > 1 else []
        return True

    def spare_needless(self) -> None:
        """Whoever is not needed once all are chosen, the dearest first."""
        dearest = sorted(self._taken.items(), key=lambda item: (-item[1].cost_gpu_us(self._now_ms), item[0]))
        for job_id, one in dearest:
            del self._taken[job_id]
            if self.fitting() < self._need.parts:
                self._taken[job_id] = one

    def victims(self) -> Victims:
        places = self._places()
        inequalities = [
            fits_after(node_id, self._rooms[node_id], self._freed(node_id), times(self._need.part, parts))
            for node_id, parts in places.items()
        ]
        taken = sorted(self._taken.items())
        return Victims(
            ended=tuple(job_id for job_id, one in taken if one.shrink is None),
            shrunk={job_id: one.shrink for job_id, one in taken if one.shrink is not None},
            places=places,
            cost_gpu_us=sum(one.cost_gpu_us(self._now_ms) for _, one in taken),
            words=(*inequalities, *(one.words(self._now_ms) for _, one in taken), *self._words),
        )

    def _covers(self, rule: EvictionRule, draws: Draws, further: int) -> Iterator[NodeCover]:
        """Of each node, for each number of further parts, ranked by what each part costs."""
        shrunk = {job_id: one.shrink for job_id, one in self._taken.items() if one.shrink is not None}
        for node_id, jobs in self._jobs.items():
            now_fits, free = self._parts_on(node_id), plus(self._rooms[node_id], self._freed(node_id))
            left = tuple(job for job in jobs if not self._is_spent(job))
            for more in range(1, further + 1):
                need = times(self._need.part, now_fits + more)
                found = cover_on_node(
                    rule, NodeQuestion(node_id, free, need, self._need.part, left, shrunk), self._now_ms, draws
                )
                if found is None:
                    break
                yield NodeCover((found.rank[0], found.rank[1] / more, node_id), found.cover)

    def _is_spent(self, job: SpotJob) -> bool:
        taken = self._taken.get(job.job_id)
        return taken is not None and taken.shrink is None

    def _touched(self) -> list[str]:
        """Nodes on which something is taken, in order."""
        return sorted({node_id for one in self._taken.values() for node_id in one.frees if node_id in self._rooms})

    def _freed(self, node_id: str) -> Amounts:
        zero = tuple(0 for _ in self._need.part)
        return _sum(zero, [one.frees[node_id] for one in self._taken.values() if node_id in one.frees])

    def _parts_on(self, node_id: str) -> int:
        return how_often(self._need.part, plus(self._rooms[node_id], self._freed(node_id)))

    def _places(self) -> dict[str, int]:
        """So many parts on each node: where something was freed first, then where most fit."""
        touched = self._touched()
        others = sorted(self._free_parts.keys() - set(touched), key=lambda one: (-self._free_parts[one], one))
        places: dict[str, int] = {}
        left = self._need.parts
        for node_id in (*touched, *others):
            parts = min(left, self._parts_on(node_id))
            if parts:
                places[node_id] = parts
                left -= parts
            if not left:
                break
        return places


def _sum(first: Amounts, others: Iterable[Amounts]) -> Amounts:
    for one in others:
        first = plus(first, one)
    return first


def _first_of(rule: EvictionRule, best: Sequence[NodeCover]) -> str:
    (one, other) = best
    return (
        f"by the rule {rule.value}, {one.rank[-1]} at {gpu_seconds(one.cover.cost_gpu_us)} comes before "
        f"{other.rank[-1]} at {gpu_seconds(other.cover.cost_gpu_us)}"
    )
