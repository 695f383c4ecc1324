"""Which switches a gang's GPUs are taken from.

The SpotGPU paper (section 4.1, equation 1) measures how a gang is spread by the entropy `H = -sum p_i ln p_i`, with
`p_i` the share of its GPUs under switch i. Lower is better: all-reduce inside one switch is faster. The same holds a
level up, with racks or regions in place of switches.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

_MOST_FIRSTS = 16


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


def complete(free: Mapping[str, int], has: Mapping[str, int], missing: int) -> dict[str, int] | None:
    """What to take by switch so that a gang which `has` something already has `missing` more; None where they are not
    there. Where it has nothing, no other allocation has less entropy, as of `allocate`; else hardly any has.

    Each time the switch that would have most of the gang in the end, which is the one that has most of it where several
    hold all that is left; of equal ones the one with the fewest free. Where the gang has something, that is tried with
    each of its own switches and of the largest others as the first, and the least entropy counts. Ties by name.
    """
    left = {name: have for name, have in free.items() if have > 0}
    if missing < 1 or sum(left.values()) < missing:
        return None if missing > 0 else {}
    firsts: list[str | None] = [None]
    if own := sorted(name for name, number in has.items() if number > 0 and name in left):
        firsts += [*own, *sorted(left.keys() - set(own), key=lambda one: (-left[one], one))[:_MOST_FIRSTS]]
    tried = [_completed(left, has, missing, first) for first in firsts]
    return min(tried, key=lambda taken: round(entropy((Counter(has) + Counter(taken)).values()), 12))


def _completed(free: Mapping[str, int], has: Mapping[str, int], missing: int, first: str | None) -> dict[str, int]:
    left, taken = dict(free), dict[str, int]()
    while missing > 0:
        sizes = {name: has.get(name, 0) + min(have, missing) for name, have in left.items()}
        name = first or min(left, key=lambda one: (-sizes[one], free[one], one))
        taken[name] = min(left.pop(name), missing)
        missing, first = missing - taken[name], None
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
