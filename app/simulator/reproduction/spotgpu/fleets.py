"""A fleet of nodes of 8 GPUs on which small tasks have come and gone.

The nodes are of four kinds that tasks cannot leave, filled by tasks of 1, 2, 4 and 8 GPUs, of which some then end at
random: 68 % of the GPUs stay taken, which is the SpotGPU paper's share of guaranteed work (section 4.2).
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from app.core.defragmentation import PackedNode, PackedTask

_KINDS = (("A100", 0.5), ("H100", 0.25), ("A10", 0.15), ("V100", 0.1))
_SIZES = ((1, 0.42), (2, 0.18), (4, 0.14), (8, 0.26))
_NODE: dict[str, Any] = {"gpus": 8, "cpus_milli": 96_000, "memory_bytes": 768 << 30}
_TAKEN = 0.68


def generate_fleet(nodes: int, locked: float, seed: int) -> tuple[list[PackedNode], list[PackedTask]]:
    """A fleet that was filled best fit, and of which tasks then ended at random."""
    chance = Random(seed)  # noqa: S311 - a simulation
    kinds = chance.choices([kind for kind, _ in _KINDS], [share for _, share in _KINDS], k=nodes)
    fleet = [PackedNode(f"n{number}", labels=frozenset((kind,)), **_NODE) for number, kind in enumerate(kinds)]
    tasks: list[PackedTask] = []
    for number, node in enumerate(fleet):
        free, cpus_milli, groups = node.gpus, node.cpus_milli, set[str]()
        while free:
            (gpus,) = chance.choices([size for size, _ in _SIZES if size <= free], [w for s, w in _SIZES if s <= free])
            cpus = min(cpus_milli, gpus * chance.choice((6_000, 8_000, 8_000, 12_000)))
            group = f"g{chance.randrange(max(1, nodes // 20))}" if chance.random() < 0.3 else None
            free, cpus_milli = free - gpus, cpus_milli - cpus
            task = PackedTask(f"t{number}-{free}", node.id, gpus, cpus, gpus << 36, node.labels, group)
            tasks.append(replace(task, apart=None) if group in groups else task)
            groups |= {group} if group else set()
    chance.shuffle(tasks)
    left, gpus_left = [], _TAKEN * 8 * nodes
    for task in tasks:
        if gpus_left <= 0:
            break
        gpus_left -= task.gpus
        left.append(replace(task, locked=chance.random() < locked))
    return fleet, left
