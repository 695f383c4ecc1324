"""How many requests of a shape would fit now, and what the rest would wait for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class FreeRoom:
    """What is free on a node, the switch it is under, and the rack it is in."""

    node_id: str
    gpus: int
    cpus_milli: int
    switch: str = ""
    rack: str = ""


@dataclass(frozen=True, slots=True)
class StrandedRoom:
    """Of one shape: how many fit now, and how many GPUs of those that are free none of them can have, by the reason.

    `for_cpus`: the CPUs of their nodes are taken. `for_gpus`: too few are free together on their nodes. `for_switch`:
    they could be part of a gang, and too few are free under their switch.
    """

    fitting: int
    for_gpus: int
    for_cpus: int
    for_switch: int = 0


def requests_that_fit(rooms: Sequence[FreeRoom], gpus: int, cpus_milli: int) -> StrandedRoom:
    """Requests of one node's GPUs and CPUs, as many as fit beside each other.

    Raises: ValueError: for a request without GPUs, or with less than no CPUs.
    """
    _check(gpus, cpus_milli)
    fitting = for_gpus = for_cpus = 0
    for room in rooms:
        free_gpus = max(room.gpus, 0)
        by_gpus, here = free_gpus // gpus, _fit(room, gpus, cpus_milli)
        fitting += here
        for_gpus += free_gpus - by_gpus * gpus
        for_cpus += (by_gpus - here) * gpus
    return StrandedRoom(fitting, for_gpus, for_cpus)


def gangs_that_fit(rooms: Sequence[FreeRoom], gpus: int, node_gpus: int, node_cpus_milli: int) -> StrandedRoom:
    """Gangs of `gpus` in pieces of `node_gpus`, each gang under one switch.

    Raises: ValueError: as `requests_that_fit`, and where the pieces do not make up the gang.
    """
    if gpus < 1 or node_gpus < 1 or gpus % node_gpus:
        raise ValueError(f"{gpus} GPUs are not whole pieces of {node_gpus}")
    pieces = requests_that_fit(rooms, node_gpus, node_cpus_milli)
    by_switch = _by_switch(rooms, node_gpus, node_cpus_milli)
    each = gpus // node_gpus
    fitting = sum(count // each for count in by_switch.values())
    left = sum(count % each for count in by_switch.values())
    return StrandedRoom(fitting, pieces.for_gpus, pieces.for_cpus, left * node_gpus)


def gangs_in_racks(rooms: Sequence[FreeRoom], gpus: int, node_gpus: int, node_cpus_milli: int) -> StrandedRoom:
    """The same, each gang in one rack, under any of its switches; `for_switch`: too few are free in their rack."""
    return gangs_that_fit([replace(room, switch=room.rack) for room in rooms], gpus, node_gpus, node_cpus_milli)


def _by_switch(rooms: Sequence[FreeRoom], gpus: int, cpus_milli: int) -> Mapping[str, int]:
    found: dict[str, int] = defaultdict(int)
    for room in rooms:
        found[room.switch] += _fit(room, gpus, cpus_milli)
    return found


def _fit(room: FreeRoom, gpus: int, cpus_milli: int) -> int:
    by_gpus = max(room.gpus, 0) // gpus
    return min(by_gpus, max(room.cpus_milli, 0) // cpus_milli) if cpus_milli else by_gpus


def _check(gpus: int, cpus_milli: int) -> None:
    if gpus < 1 or cpus_milli < 0:
        raise ValueError(f"no request has {gpus} GPUs and {cpus_milli} thousandths of a CPU")
