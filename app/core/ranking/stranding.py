"""Free GPUs for which CPUs or memory will probably be lacking once pods have come.

Fragmentation looks at the next pod: a node with eight free GPUs and CPUs for two fits it, and counts as whole. Here the
GPUs of a node are filled one by one by pods that need as much of the rest as all pods do for each GPU, on average and
with their spread (taken as normal). What is stranded is each GPU by the chance that the rest is used up before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from app.core.ranking.model import WHOLE_MILLI, NodeLeft, PodNeed


class Stranding:
    """Expected GPUs without CPUs or memory, in thousandths of a GPU."""

    def __init__(self, expected: Iterable[PodNeed]) -> None:
        pods = [pod for pod in expected if pod.gpus]
        self._cpu = _spread([(pod.cpu_milli, pod.taken_milli / WHOLE_MILLI) for pod in pods])
        self._memory = _spread([(pod.memory_mib, pod.taken_milli / WHOLE_MILLI) for pod in pods])
        self._known: dict[tuple[int, int, tuple[int, ...]], float] = {}

    def of(self, left: NodeLeft) -> float:
        key = (left.cpu_milli, left.memory_mib, left.gpus_milli)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._of(left)
        return found

    def _of(self, left: NodeLeft) -> float:
        stranded = filled = 0.0
        for milli in reversed(left.gpus_milli):
            if milli:
                filled += milli / WHOLE_MILLI
                enough = _enough(left.cpu_milli, self._cpu, filled) * _enough(left.memory_mib, self._memory, filled)
                stranded += milli * (1 - enough)
        return stranded


def _spread(pods: list[tuple[int, float]]) -> tuple[float, float]:
    """Mean and variance of what is needed for one GPU's worth of pods."""
    gpus = math.fsum(taken for _, taken in pods)
    if not gpus:
        return 0.0, 0.0
    mean = sum(need for need, _ in pods) / gpus
    return mean, math.fsum((need - mean * taken) ** 2 / max(1.0, taken) for need, taken in pods) / gpus


def _enough(there: int, spread: tuple[float, float], gpus: float) -> float:
    """The chance that so much lasts for so many GPUs."""
    mean, variance = spread
    deviation = math.sqrt(variance * gpus) + 1
    return 0.5 * (1 + math.erf((there - mean * gpus) / (deviation * math.sqrt(2))))
