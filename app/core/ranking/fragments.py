"""Free GPUs that the pods which are expected could not use (Weng et al., "Beware of Fragmentation", section 3).

For one pod, all that is free of a node's GPUs is a fragment where the pod does not fit on the node; where it does,
those GPUs are of which too little is free for it. The fragmentation of a node is the mean over the pods, by how often
they come. Memory is left out, as in the paper. Pods without GPUs are left out too: they rank no node before another.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import accumulate

from app.core.ranking.model import NodeLeft, PodNeed

_Asked = tuple[int, int, list[int], list[float]]  # GPUs, thousandths, CPUs in order, shares of pods up to each of them


class Fragments:
    """Expected fragments of a node, in thousandths of a GPU."""

    def __init__(self, expected: Iterable[PodNeed]) -> None:
        self._counts = Counter(pod for pod in expected if pod.gpus)
        self._asked: dict[str, list[_Asked]] = {}
        self._known: dict[tuple[str, int, tuple[int, ...]], float] = {}

    def of(self, left: NodeLeft) -> float:
        key = (left.kind, left.cpu_milli, left.gpus_milli)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._of(left)
        return found

    def _of(self, left: NodeLeft) -> float:
        ascending = left.gpus_milli[::-1]
        below = [0, *accumulate(ascending)]
        if not below[-1]:
            return 0.0
        usable = 0.0
        for gpus, milli, cpus, shares in self._of_kind(left.kind):
            fitting = bisect_right(cpus, left.cpu_milli)
            too_small = bisect_left(ascending, milli)
            if fitting and len(ascending) - too_small >= gpus:
                usable += shares[fitting - 1] * (below[-1] - below[too_small])
        return below[-1] - usable

    def _of_kind(self, kind: str) -> list[_Asked]:
        if kind not in self._asked:
            total = sum(self._counts.values())
            groups: dict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)
            for pod, count in self._counts.items():
                if not pod.kinds or kind in pod.kinds:
                    groups[pod.gpus, pod.gpu_milli].append((pod.cpu_milli, count / total))
            self._asked[kind] = [
                (*shape, [cpus for cpus, _ in sorted(pods)], list(accumulate(share for _, share in sorted(pods))))
                for shape, pods in sorted(groups.items())
            ]
        return self._asked[kind]
