"""Which switches a gang's GPUs are taken from.

The SpotGPU paper (section 4.1, equation 1) measures how a gang is spread by the entropy `H = -sum p_i ln p_i`, with
`p_i` the share of its GPUs under switch i. Lower is better: all-reduce inside one switch is faster. The same holds a
level up, with racks or regions in place of switches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping


def entropy(taken: Iterable[int]) -> float:
    """Equation 1, in nats, of the GPUs taken under each switch; 0.0 where all, or none, are under one."""
    counts = [gpus for gpus in taken if gpus > 0]
    return sum(-gpus / sum(counts) * math.log(gpus / sum(counts)) for gpus in counts) + 0.0


def allocate(free_gpus: Mapping[str, int], gpus: int, most_of_one: int | None = None) -> dict[str, int] | None:
    """GPUs to take by switch for a gang of `gpus`; None where they are not there.

    One switch where one holds them all, the one with the fewest free; else the largest first, and the rest from the
    one that is left with the fewest free GPUs. No other allocation has less entropy. `most_of_one`: at most so many
    under one switch, for gangs that have to outlive a failure domain. Ties by name.
    """
    free = {name: min(have, gpus if most_of_one is None else most_of_one) for name, have in free_gpus.items()}
    if gpus < 1 or sum(have for have in free.values() if have > 0) < gpus:
        return None
    taken: dict[str, int] = {}
    missing = gpus
    while missing:
        fitting = [(free_gpus[name], name) for name, have in free.items() if have >= missing]
        name = min(fitting)[1] if fitting else max(free, key=lambda one: (free[one], free_gpus[one], one))
        taken[name] = min(free.pop(name), missing)
        missing -= taken[name]
    return taken


def allocate_literally(free_gpus: Mapping[str, int], gpus: int) -> dict[str, int] | None:
    """The paper's Algorithm 2 as printed, to compare with: the switch that adds the least entropy, again and again.

    It prefers small switches: at each step `p_i` is a share of what is taken so far. Ties by name.
    """
    free = {name: have for name, have in free_gpus.items() if have > 0}
    taken: dict[str, int] = {}
    missing = gpus
    while missing > 0 and free:
        scores = {name: entropy([*taken.values(), min(have, missing)]) for name, have in free.items()}
        name = min(scores, key=lambda one: (round(scores[one], 12), one))
        taken[name] = min(free.pop(name), missing)
        missing -= taken[name]
    return taken if taken and missing == 0 else None
