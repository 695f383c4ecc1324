"""The serverful scaler: how many nodes are rented (paper, Algorithm 2, mended).

The paper sizes scale-in from the shortfall max(0, D - C T), which is zero whenever there is room, so that nothing
would ever be given back; the surplus max(0, C T - D) is meant. And it compares the rate C with the work D: C T is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """Nodes to rent, and nodes that may be given back; one of the two is zero."""

    more: int
    fewer: int


def resize(demand_gpu_ms: int, capacity: float, horizon_ms: int, node_rate: float = 1.0) -> Change:
    """What closes the gap between the work due within the horizon and what the nodes can do in it.

    `capacity`: GPU-milliseconds per millisecond of all nodes, `node_rate` of one more. Rounded so that the work fits
    in either case: up for more, down for fewer.
    """
    gap = demand_gpu_ms - capacity * horizon_ms
    one = node_rate * horizon_ms
    return Change(math.ceil(gap / one), 0) if gap > 0 else Change(0, math.floor(-gap / one))
