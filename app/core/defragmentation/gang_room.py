"""Room for a job on several machines that waits: which nodes are vacated so that all of its machines are close to each
other, at what its moves cost.

The SpotGPU paper (section 4.1) repairs gangs across switches by the same chains of moves that vacate nodes, and does
not say which nodes are vacated. Here each switch, each rack and the whole pool are tried: nodes that have room already
are counted, the cheapest of the others are vacated, and what it takes is compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.core.defragmentation.ejecting import Ejection
from app.core.defragmentation.model import SearchBounds
from app.core.defragmentation.packed_fleet import PackedFleet
from app.core.model.job import ANY_NUMBER, MostUnderOne
from app.core.topology import Domain, Seats

# Moves that bring a job's machines closer together may take this many times the GPUs of the fewest that let it begin.
WORTH_CLOSER = 2
_MOST_SCOPES = 16  # of each level
_MOST_TARGETS = 500  # as many nodes as a partition has (section 4.1)
_SPREAD = 2_654_435_761  # as in `planning`: neighbours are not all taken, or all left out


@dataclass(frozen=True, slots=True)
class GangWish:
    """A job that waits for so many nodes with so many free GPUs on each. `nodes_there`: those that could be its own if
    nothing was on them, each with its rack and switch; `place`: what people call them together. `is_more`: these are
    beside those that it trains on already."""

    job_id: str
    nodes: int
    gpus: int
    nodes_there: Mapping[str, Domain]
    place: str
    most: MostUnderOne = ANY_NUMBER
    is_more: bool = False

    @property
    def in_words(self) -> str:
        return "all of its machines" if self.is_more else f"its {self.nodes} machines"


@dataclass(frozen=True, slots=True)
class GangRoom:
    """`vacated`: indices of nodes, each with where in the log of the fleet its moves begin and end. `held`: of those
    that have room as they are. `gpus`: that are moved, each time. `where`: what all of them are under."""

    wish: GangWish
    vacated: tuple[tuple[int, int, int], ...]
    held: tuple[int, ...]
    gpus: int
    where: str

    @property
    def nodes(self) -> frozenset[int]:
        return frozenset({*self.held, *(node for node, _, _ in self.vacated)})


@dataclass(frozen=True, slots=True)
class _Scope:
    """Nodes that are under one switch, in one rack, or anywhere; the closest have the highest level."""

    level: int
    where: str
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Try:
    """What it takes in one scope, with the moves, which have been taken back."""

    scope: _Scope
    vacated: tuple[tuple[int, int, int], ...]
    held: tuple[int, ...]
    gpus: int
    moves: tuple[tuple[int, int], ...]  # task and target

    @property
    def rank(self) -> tuple[int, int, str]:
        return self.gpus, len(self.moves), self.scope.where


def make_room(
    fleet: PackedFleet, wishes: Sequence[GangWish], bounds: SearchBounds, taken: Collection[int]
) -> GangRoom | None:
    """Moves tasks in the fleet so that the job could begin at one of the places that would do. `wishes`: the same job
    in each of them; `taken`: nodes that are others' already. None, with the fleet as it was, where that is not to be
    had, or where one of the places has room as it is: then it waits for something else.

    The closest it can be had for at most `WORTH_CLOSER` times the GPUs that have to move for it at least.
    """
    searches = [_Search(fleet, wish, bounds, taken) for wish in wishes]
    if any(search.has_room() for search in searches):
        return None
    found = [(one, search.wish) for search in searches for one in search.tries()]
    if not found:
        return None
    fewest = min(one.gpus for one, _ in found)
    worth = [(one, wish) for one, wish in found if one.gpus <= WORTH_CLOSER * fewest]
    best, wish = min(worth, key=lambda pair: (-pair[0].scope.level, pair[0].rank))
    shift = len(fleet.log)
    for task, target in best.moves:
        fleet.move(task, target)
    vacated = tuple((node, begun + shift, ended + shift) for node, begun, ended in best.vacated)
    return GangRoom(wish, vacated, best.held, best.gpus, best.scope.where)


class _Search:
    def __init__(self, fleet: PackedFleet, wish: GangWish, bounds: SearchBounds, taken: Collection[int]) -> None:
        self._fleet, self.wish, self._bounds, self._taken = fleet, wish, bounds, taken
        self._domain = {
            index: domain
            for index, node in enumerate(fleet.nodes)
            if (domain := wish.nodes_there.get(node.id)) is not None
            and node.gpus >= wish.gpus
            and index not in taken
            and fleet.is_sound(index)
        }
        self._targets = self._near(fleet.occupied())

    def has_room(self) -> bool:
        return len(self._held(self._domain)) == self.wish.nodes

    def tries(self) -> Iterator[_Try]:
        """Of each level the scopes that look cheapest."""
        scopes: dict[int, list[tuple[int, _Scope]]] = {}
        for scope in self._scopes():
            least = self._least_gpus(scope)
            if least is not None:
                scopes.setdefault(scope.level, []).append((least, scope))
        for ranked in scopes.values():
            ranked.sort(key=lambda pair: (pair[0], pair[1].where))
            for _, scope in ranked[:_MOST_SCOPES]:
                found = self._try(scope)
                if found is not None:
                    yield found

    def _scopes(self) -> Iterator[_Scope]:
        by_group: dict[tuple[int, Domain], list[int]] = {}
        for node, domain in self._domain.items():
            for level in range(len(domain) + 1):
                by_group.setdefault((level, domain[:level]), []).append(node)
        for (level, group), nodes in by_group.items():
            named = group[-1] if group else ""
            if level == 0 or named:
                words = (
                    f"under {named}" if level == 2 else f"in rack {named}" if level == 1 else f"in {self.wish.place}"
                )
                yield _Scope(level, words, tuple(nodes))

    def _held(self, nodes: Collection[int]) -> list[int]:
        """Those with room as they are, the tightest first, as many as the job may have together."""
        seats, held = self._seats(), list[int]()
        ready = [node for node in nodes if self._fleet.free_gpus[node] >= self.wish.gpus]
        for node in sorted(ready, key=lambda one: (self._fleet.free_gpus[one], one)):
            if len(held) < self.wish.nodes and seats.take(self._domain[node]):
                held.append(node)
        return held

    def _seats(self, taken: Collection[int] = ()) -> Seats:
        seats = Seats(self.wish.most.by_level)
        for node in taken:
            seats.take(self._domain[node])
        return seats

    def _candidates(self, scope: _Scope, held: Collection[int]) -> list[int]:
        """Those that could be vacated, the fewest GPUs first."""
        fleet = self._fleet
        able = [node for node in scope.nodes if node not in held and fleet.is_movable(node)]
        return sorted(able, key=lambda node: (self._used(node), len(fleet.on[node]), node))

    def _used(self, node: int) -> int:
        return self._fleet.nodes[node].gpus - self._fleet.free_gpus[node]

    def _least_gpus(self, scope: _Scope) -> int | None:
        """No fewer have to move; None where there are too few nodes."""
        held = self._held(scope.nodes)
        seats, missing = self._seats(held), self.wish.nodes - len(held)
        able = [node for node in self._candidates(scope, held) if seats.take(self._domain[node])]
        return sum(self._used(node) for node in able[:missing]) if len(able) >= missing else None

    def _try(self, scope: _Scope) -> _Try | None:
        """First with nobody moved onto nodes that are to be vacated too, then with that."""
        held = self._held(scope.nodes)
        candidates = self._candidates(scope, held)
        for kept_free in (set(candidates[: self.wish.nodes - len(held)]), set[int]()):
            found = self._vacate(scope, held, candidates, kept_free)
            if found is not None:
                return found
        return None

    def _vacate(
        self, scope: _Scope, held: Sequence[int], candidates: Sequence[int], kept_free: Collection[int]
    ) -> _Try | None:
        fleet, begun = self._fleet, len(self._fleet.log)
        shut = {*held, *self._taken, *kept_free}
        ejection = Ejection(fleet, [node for node in self._targets if node not in shut], self._bounds)
        seats, vacated = self._seats(held), list[tuple[int, int, int]]()
        for node in candidates:
            if len(held) + len(vacated) == self.wish.nodes:
                break
            first = len(fleet.log)
            if seats.has(self._domain[node]) and fleet.is_movable(node) and ejection.vacate(node):
                seats.take(self._domain[node])
                vacated.append((node, first - begun, len(fleet.log) - begun))
        moved = tuple((task, target) for task, _, target in fleet.log[begun:])
        fleet.undo(begun)
        if len(held) + len(vacated) < self.wish.nodes:
            return None
        gpus = sum(fleet.tasks[task].gpus for task, _ in moved)
        return _Try(scope, tuple(vacated), tuple(held), gpus, moved)

    def _near(self, occupied: Sequence[int]) -> list[int]:
        """Nodes that could take a task as they are. Of too many some from everywhere."""
        able = [node for node in occupied if self._fleet.free_gpus[node] > 0]
        if len(able) > _MOST_TARGETS:
            able = sorted(able, key=lambda node: node * _SPREAD % (1 << 32))[:_MOST_TARGETS]
        return sorted(able)
