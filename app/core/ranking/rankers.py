"""The rankers, by name."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum

from app.core.ranking.fragments import Fragments
from app.core.ranking.model import WHOLE_MILLI, NodeLeft, PodNeed
from app.core.ranking.scarcity import scarcity_of
from app.core.ranking.stranding import Stranding

Rank = tuple[float, ...]
Ranking = Callable[[NodeLeft, NodeLeft], Rank]
"""Of a node before the pod and after it; the lowest wins."""

# Of a GPU that will be stranded, and of one of a kind that is short, against one that is a fragment. Of 0.03 to 10 and
# 0 to 3, chosen on seeds 42 to 47 of the workloads that `benchmarks/pool_placement.py` is for; it reports on others.
STRANDED, SHORT = 0.1, 1.0
_DIGITS = 4  # sums of floats that are equal by rights differ in the last places


class RankerName(StrEnum):
    """The package says what each is."""

    FIRST_FIT = "first-fit"
    BEST_FIT = "best-fit"
    IDLE_GPUS = "idle-gpus"
    GRADIENT = "gradient"
    GRADIENT_ROUNDED = "gradient-rounded"
    OURS = "ours"


def ranking_of(name: RankerName, nodes: Iterable[NodeLeft], expected: Iterable[PodNeed]) -> Ranking:
    """For a pool of these nodes when nothing is on them, and the pods that are expected, each as often as it comes."""
    pool, pods = list(nodes), list(expected)
    match name:
        case RankerName.FIRST_FIT:
            return lambda _before, _after: ()
        case RankerName.BEST_FIT:
            fullness = _still_free(pool)
            return lambda _before, after: (fullness(after),)
        case RankerName.IDLE_GPUS:
            return lambda _before, after: (after.free_milli,)
        case RankerName.GRADIENT:
            return _gradient(Fragments(pods))
        case RankerName.GRADIENT_ROUNDED:
            return _rounded_gradient(Fragments(pods))
        case RankerName.OURS:
            return _ours(pool, pods)


def _gradient(fragments: Fragments) -> Ranking:
    return lambda before, after: (round(fragments.of(after) - fragments.of(before), _DIGITS),)


def _rounded_gradient(fragments: Fragments) -> Ranking:
    def rank(before: NodeLeft, after: NodeLeft) -> Rank:
        less = (fragments.of(before) - fragments.of(after)) / WHOLE_MILLI
        return (-math.floor(100 / (1 + math.exp(-less))),)

    return rank


def _ours(pool: list[NodeLeft], pods: list[PodNeed]) -> Ranking:
    fragments, stranding, still_free = Fragments(pods), Stranding(pods), _still_free(pool)
    gpus_by_kind: Counter[str] = Counter()
    for node in pool:
        gpus_by_kind[node.kind] += len(node.gpus_milli)
    short = scarcity_of(pods, gpus_by_kind)

    known: dict[NodeLeft, float] = {}

    def badness(left: NodeLeft) -> float:
        found = known.get(left)
        if found is None:
            kept = SHORT * short.get(left.kind, 0.0) * left.free_milli
            found = known[left] = fragments.of(left) + STRANDED * stranding.of(left) - kept
        return found

    return lambda before, after: (round(badness(after) - badness(before), _DIGITS), still_free(after))


def _still_free(pool: list[NodeLeft]) -> Callable[[NodeLeft], float]:
    """CPUs and GPUs that are free, as shares of the most that a node of the pool has."""
    most_cpu = max((node.cpu_milli for node in pool), default=0) or 1
    most_gpu = max((node.free_milli for node in pool), default=0) or 1
    return lambda left: round(left.cpu_milli / most_cpu + left.free_milli / most_gpu, _DIGITS + 4)
