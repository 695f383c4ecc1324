"""Which kinds of GPU are short because pods insist on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from app.core.ranking.model import PodNeed

_ROUNDS = 50  # halvings of a level: more than a double can tell apart
MOST = 1.5


def scarcity_of(expected: Iterable[PodNeed], gpus_by_kind: Mapping[str, int]) -> dict[str, float]:
    """By kind, how much of it would be taken by pods that name kinds, if pods asked for all GPUs in all; at most MOST.

    Those that name the fewest kinds come first. Who names several is spread over them so that the least taken fill up.
    A kind that nobody has cannot be short, and is left out.
    """
    asked: Counter[tuple[str, ...]] = Counter()
    for pod in expected:
        asked[tuple(sorted(kind for kind in pod.kinds if gpus_by_kind.get(kind, 0) > 0))] += pod.taken_milli
    taken = {kind: 0.0 for kind, gpus in sorted(gpus_by_kind.items()) if gpus > 0}
    total_milli = sum(asked.values())
    for kinds in sorted((one for one in asked if one and total_milli), key=lambda one: (len(one), one)):
        gpus = sum(gpus_by_kind[kind] for kind in taken) * asked[kinds] / total_milli
        level = _level(gpus, {kind: (taken[kind], gpus_by_kind[kind]) for kind in kinds})
        for kind in kinds:
            taken[kind] = max(taken[kind], level * gpus_by_kind[kind])
    return {kind: min(MOST, gpus / gpus_by_kind[kind]) for kind, gpus in taken.items()}


def _level(gpus: float, kinds: Mapping[str, tuple[float, int]]) -> float:
    """The share of each kind up to which so many GPUs fill them."""
    low, high = 0.0, max(taken / there for taken, there in kinds.values()) + gpus / min(n for _, n in kinds.values())
    for _ in range(_ROUNDS):
        level = (low + high) / 2
        if sum(max(0.0, level * there - taken) for taken, there in kinds.values()) < gpus:
            low = level
        else:
            high = level
    return high
