"""A pod, a node with what is left of it, and the ways in which the one can be put on the other."""

from __future__ import annotations

from typing import NamedTuple

WHOLE_MILLI = 1_000


class PodNeed(NamedTuple):
    """`gpus` whole GPUs where `gpu_milli` is 1000, else that part of one GPU; no GPUs at all are 0 and 0.

    `kinds`: of GPU, of which it takes any; none is all.
    """

    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    kinds: frozenset[str] = frozenset()

    @property
    def taken_milli(self) -> int:
        return self.gpus * self.gpu_milli


class NodeLeft(NamedTuple):
    """What is free on a node. `gpus_milli` has one number for each GPU, the largest first: GPUs of a node are alike."""

    kind: str
    cpu_milli: int
    memory_mib: int
    gpus_milli: tuple[int, ...]

    @property
    def free_milli(self) -> int:
        return sum(self.gpus_milli)


def checked(need: PodNeed) -> PodNeed:
    """Raises: ValueError: for a pod that is no need: less than nothing, or a part of several GPUs."""
    shares = need.gpus == 1 and 0 < need.gpu_milli < WHOLE_MILLI
    whole = need.gpus > 0 and need.gpu_milli == WHOLE_MILLI
    if min(need.cpu_milli, need.memory_mib, need.gpus) < 0 or not (shares or whole or need.gpus == need.gpu_milli == 0):
        raise ValueError(
            f"{need} is no need: give amounts of at least 0, and whole GPUs (gpu_milli 1000) or a part of one"
        )
    return need


def ways_to_place(left: NodeLeft, need: PodNeed) -> tuple[NodeLeft, ...]:
    """What each way to place the pod would leave of the node, the tightest GPU first; none where it does not fit."""
    cpu_milli, memory_mib = left.cpu_milli - need.cpu_milli, left.memory_mib - need.memory_mib
    if cpu_milli < 0 or memory_mib < 0 or (need.kinds and left.kind not in need.kinds):
        return ()
    free = left.gpus_milli
    if need.gpus == 0:
        return (NodeLeft(left.kind, cpu_milli, memory_mib, free),)
    if need.gpu_milli == WHOLE_MILLI:
        if len(free) < need.gpus or free[need.gpus - 1] < WHOLE_MILLI:
            return ()
        return (NodeLeft(left.kind, cpu_milli, memory_mib, free[need.gpus :] + (0,) * need.gpus),)
    shared = (
        tuple(sorted((*free[:at], free[at] - need.gpu_milli, *free[at + 1 :]), reverse=True))
        for at in range(len(free) - 1, -1, -1)
        if free[at] >= need.gpu_milli and (at == 0 or free[at - 1] != free[at])
    )
    return tuple(NodeLeft(left.kind, cpu_milli, memory_mib, gpus) for gpus in shared)
