"""Nodes in the order of a ranker, for one pod after the other.

Each shape of pod has a heap of nodes by rank. A node that has changed is ranked anew when that shape is next asked for,
and what a heap holds of its former state is dropped when it comes up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from app.core.ranking.model import NodeLeft, PodNeed, checked, ways_to_place
from app.core.ranking.rankers import Rank, Ranking

_LOG_OF_NODES = 16  # changes that are kept for each node, before all shapes begin anew


class PodPlace(NamedTuple):
    """The node for a pod, and what would be left of it."""

    node_id: str
    after: NodeLeft


class _Offer(NamedTuple):
    rank: Rank
    node: int
    version: int
    after: NodeLeft


@dataclass(slots=True)
class _Shape:
    """`known`: by state of a node, the rank and what would be left."""

    seen: int = 0
    heap: list[_Offer] = field(default_factory=list)
    known: dict[int, tuple[Rank, NodeLeft] | None] = field(default_factory=dict)


class RankedPool:
    """`find` changes nothing; `take` says what was done."""

    def __init__(self, nodes: Mapping[str, NodeLeft], rank: Ranking) -> None:
        self._rank = rank
        self._ids = sorted(nodes)
        self._index = {node_id: index for index, node_id in enumerate(self._ids)}
        self._states: list[NodeLeft] = []
        self._state_of: dict[NodeLeft, int] = {}
        self._at = [self._state(_in_order(nodes[node_id])) for node_id in self._ids]
        self._versions = [0] * len(self._ids)
        self._log = list(range(len(self._ids)))
        self._shapes: dict[PodNeed, _Shape] = {}

    def left(self) -> dict[str, NodeLeft]:
        """Of every node."""
        return {node_id: self._states[state] for node_id, state in zip(self._ids, self._at, strict=True)}

    def find(self, need: PodNeed) -> PodPlace | None:
        """The best place by the ranker, None where it fits nowhere.

        Raises: ValueError: for a pod that is no need.
        """
        shape = self._shapes.get(need)
        if shape is None:
            shape = self._shapes[checked(need)] = _Shape()
        self._catch_up(shape, need)
        heap, versions = shape.heap, self._versions
        while heap and heap[0].version != versions[heap[0].node]:
            heappop(heap)
        return PodPlace(self._ids[heap[0].node], heap[0].after) if heap else None

    def take(self, place: PodPlace) -> None:
        """What `find` has found since the last `take`."""
        node = self._index[place.node_id]
        self._at[node] = self._state(place.after)
        self._versions[node] += 1
        self._log.append(node)
        if len(self._log) > _LOG_OF_NODES * len(self._ids):
            self._begin_anew()

    def _begin_anew(self) -> None:
        kept = [self._states[state] for state in self._at]
        self._states, self._state_of = [], {}
        self._at = [self._state(left) for left in kept]
        self._log = list(range(len(self._ids)))
        self._shapes.clear()

    def _state(self, left: NodeLeft) -> int:
        state = self._state_of.setdefault(left, len(self._states))
        if state == len(self._states):
            self._states.append(left)
        return state

    def _catch_up(self, shape: _Shape, need: PodNeed) -> None:
        at, known, versions = self._at, shape.known, self._versions
        offers = []
        for node in dict.fromkeys(self._log[shape.seen :]):
            state = at[node]
            found = known[state] if state in known else self._ranked(known, state, need)
            if found is not None:
                offers.append(_Offer(found[0], node, versions[node], found[1]))
        shape.seen = len(self._log)
        if len(offers) > len(shape.heap):
            shape.heap += offers
            heapify(shape.heap)
        else:
            for offer in offers:
                heappush(shape.heap, offer)

    def _ranked(
        self, known: dict[int, tuple[Rank, NodeLeft] | None], state: int, need: PodNeed
    ) -> tuple[Rank, NodeLeft] | None:
        before, best = self._states[state], None
        for after in ways_to_place(before, need):
            rank = self._rank(before, after)
            if best is None or rank < best[0]:
                best = rank, after
        known[state] = best
        return best


def _in_order(node: NodeLeft) -> NodeLeft:
    return node._replace(gpus_milli=tuple(sorted(node.gpus_milli, reverse=True)))
