"""Where a job starts without evicting anybody (SpotGPU, section 4.2): of the nodes where it fits, by three criteria in
order, each breaking the ties of the one before.

1. The least that stays idle.
2. Guaranteed jobs beside guaranteed ones; spot jobs where there are only spot jobs.
3. Spot jobs where fewest evictions have happened, guaranteed jobs where most have.

The paper's count of evictions has no window; here it halves with every half-life, or a node's first year would outweigh
its last week.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.core.eviction.amounts import Amounts, covers, lacking

HALF_LIFE_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class DecayedCount:
    """A count that halves with every HALF_LIFE_MS since `at_ms`."""

    value: float = 0.0
    at_ms: int = 0

    def at(self, now_ms: int) -> float:
        return float(self.value * 0.5 ** (max(0, now_ms - self.at_ms) / HALF_LIFE_MS))

    def one_more(self, now_ms: int) -> DecayedCount:
        return DecayedCount(self.at(now_ms) + 1.0, max(now_ms, self.at_ms))


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """A node as a job that looks for a place sees it: `free` is what it may take (`free_for`)."""

    node_id: str
    free: Amounts
    guaranteed_jobs: int = 0
    evictions: DecayedCount = DecayedCount()


def place_beside(need: Amounts, spot: bool, rooms: Iterable[NodeRoom], now_ms: int) -> NodeRoom | None:
    """The node for one part of a job, None where it fits nowhere. Further ties go to the lowest node id."""
    fitting = (room for room in rooms if covers(room.free, need))
    return min(fitting, key=lambda room: rank_beside(room, need, spot, now_ms), default=None)


def rank_beside(room: NodeRoom, need: Amounts, spot: bool, now_ms: int) -> tuple[Amounts, bool, float, str]:
    """How good a node is by the three criteria, of those on which the part fits: the lower, the better."""
    evictions = room.evictions.at(now_ms)
    alike = (room.guaranteed_jobs == 0) is spot
    return lacking(room.free, need), not alike, evictions if spot else -evictions, room.node_id
