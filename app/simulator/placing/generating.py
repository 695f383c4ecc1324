"""A workload from published figures, for those who have no file.

Which part of the pods ask for how many GPUs is that of table 1 in "Beware of Fragmentation" (Weng et al., USENIX ATC
2023): no GPU 13.3 %, a part of one 37.8 %, one 48.0 %, two 0.2 %, four 0.2 %, eight 0.5 %; a part of a GPU is three
quarters on average there, since it is 28.5 % of what is asked for. Not published as figures, and so assumed: nodes of 8
GPUs with 96 CPUs and 384 GiB, and of 2 GPUs with 104 CPUs and 512 GiB, four of the first for three of the second; 4 to
18 CPUs for a GPU or a part of one, and four times as much memory in GiB.
"""

from __future__ import annotations

from random import Random

from app.core.ranking import NodeLeft, PodNeed
from app.core.ranking.model import WHOLE_MILLI
from app.simulator.placing.workload import PlacementWorkload

_SHARES = ((0, 0.133), (-1, 0.378), (1, 0.48), (2, 0.002), (4, 0.002), (8, 0.005))
_PARTS = (320, 470, 650, 810, 900)
_CPUS = (4_000, 8_000, 11_000, 12_000, 18_000)
_PODS_PER_NODE = 7


def generate_workload(nodes: int, seed: int) -> PlacementWorkload:
    """So many nodes, and pods for about as many GPUs as these have."""
    chance = Random(seed)  # noqa: S311 - a simulation
    cluster = {
        f"n{number:05d}": NodeLeft("large", 96_000, 384 << 10, (WHOLE_MILLI,) * 8)
        if number % 7 < 4
        else NodeLeft("small", 104_000, 512 << 10, (WHOLE_MILLI,) * 2)
        for number in range(nodes)
    }
    pods = tuple(_pod(chance) for _ in range(_PODS_PER_NODE * nodes))
    return PlacementWorkload("generated", cluster, pods)


def _pod(chance: Random) -> PodNeed:
    (gpus,) = chance.choices([size for size, _ in _SHARES], [share for _, share in _SHARES])
    cpus = chance.choice(_CPUS) * max(1, gpus)
    milli = chance.choice(_PARTS) if gpus < 0 else WHOLE_MILLI if gpus else 0
    return PodNeed(cpus, cpus * 4 * 1024 // 1000, abs(gpus), milli)
