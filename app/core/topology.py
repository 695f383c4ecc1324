"""Which switches a gang's GPUs are taken from.

The SpotGPU paper (section 4.1, equation 1) measures how a gang is spread by the entropy `H = -sum p_i ln p_i`, with
`p_i` the share of its GPUs under switch i. Lower is better: all-reduce inside one switch is faster. The same holds a
level up, with racks or regions in place of switches.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

Domain = tuple[str, ...]  # from the top level down, e.g. a rack and a switch in it; empty names where nobody says it
Bounds = Sequence[int | None]  # by level from the top down: how many may be under one domain of it; None: any number
K = TypeVar("K", str, Domain)

_MOST_FIRSTS = 16
_MOST_GROUPS = 16


class SwitchRule(StrEnum):
    """How the switches of a gang are chosen. FEWEST: as few racks and switches as can be (`complete_nested`). LITERAL:
    the paper's Algorithm 2 as printed (`allocate_literally`), which knows no racks."""

    FEWEST = "fewest"
    LITERAL = "literal"


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


class Seats:
    """What may be taken one by one, where only so many may be under one domain of a level.

    Taken in any order, as many are had as in every other (domains of one level are apart, and within those above), so
    that whoever is to be preferred is to come first.
    """

    def __init__(self, most: Bounds, has: Mapping[Domain, int] | None = None) -> None:
        self._most = most
        self._taken: Counter[Domain] = Counter()
        for domain, number in (has or {}).items():
            self._count(domain, number)

    def has(self, domain: Domain) -> bool:
        """Whether one more may be under it."""
        return all(most is None or self._taken[domain[:level]] < most for level, most in enumerate(self._most, start=1))

    def take(self, domain: Domain) -> bool:
        """Whether one more may be under it; then it is."""
        if not self.has(domain):
            return False
        self._count(domain, 1)
        return True

    def _count(self, domain: Domain, number: int) -> None:
        for level in range(1, len(self._most) + 1):
            self._taken[domain[:level]] += number


def choose(
    rule: SwitchRule,
    free: Mapping[Domain, int],
    has: Mapping[Domain, int],
    missing: int,
    most: Bounds = (),
) -> dict[Domain, int] | None:
    """What this rule takes under each switch so that a gang which `has` something already has `missing` more; None
    where that much is not there, or not within `most`, which LITERAL does not know."""
    if missing == 0:
        return {}
    if rule is SwitchRule.LITERAL:
        return allocate_literally(free, missing, has)
    return complete_nested(free, has, missing, most)


def spread(taken: Mapping[Domain, int]) -> float:
    """Of what is taken under each: the entropy of each level, added up. 0.0 where all is under one switch."""
    depth = max(map(len, taken), default=0)
    return sum(entropy(_by_level(taken, level).values()) for level in range(1, depth + 1))


def domain_in_words(domain: Domain) -> str:
    """Of a rack and a switch, where either may be unsaid: `under leaf-1 in rack r1`."""
    rack, switch = domain
    where = f"under {switch}" if switch else "under one that nobody says"
    return f"{where} in rack {rack}" if rack else where


def domains_of(said: Mapping[str, tuple[str, str]]) -> dict[str, Domain]:
    """Rack and switch of each host, of which its owner has said one or both. A switch is in one rack: in the one that
    most of its hosts name, so that a host that names none, or another one, does not tear it apart. Ties by name."""
    named: dict[str, Counter[str]] = {}
    for rack, switch in said.values():
        if rack and switch:
            named.setdefault(switch, Counter())[rack] += 1
    racks = {switch: min(counts, key=lambda rack: (-counts[rack], rack)) for switch, counts in named.items()}
    return {host: (racks.get(switch, "") if switch else rack, switch) for host, (rack, switch) in said.items()}


def complete_nested(
    free: Mapping[Domain, int], has: Mapping[Domain, int], missing: int, most: Bounds = ()
) -> dict[Domain, int] | None:
    """As `complete`, with what is above switches: what to take under each so that a gang which `has` something already
    has `missing` more. All domains name as many levels. None where that much is not there.

    All under one switch where one holds them; else in one rack where one does, which is the one where they are least
    spread; else over as few racks as can be, and in each of them in the same way. Of equal ones that with the least
    free, ties by name. `most`: what is free beyond these bounds, with what the gang has, does not count as free.
    """
    depth = max(map(len, free), default=0)
    left = {domain: number for domain, number in _rooms(free, has, depth, most).items() if number > 0}
    if missing < 1 or sum(_rooms(left, has, 0, most).values()) < missing:
        return None if missing > 0 else {}
    for level in range(depth, -1, -1):
        groups = _rooms(left, has, level, most)
        mine = {domain[:level] for domain, number in has.items() if number > 0}
        fitting = [group for group, number in groups.items() if number >= missing and mine <= {group}]
        if level == depth and fitting:
            return {min(fitting, key=lambda one: (free[one], one)): missing}
        if fitting:
            nearest = sorted(fitting, key=lambda one: (groups[one], one))[:_MOST_GROUPS]
            there, own = _grouped(left, level), _grouped(has, level)
            tried = [_shared_out(there[group], own.get(group, {}), missing, level + 1, most) for group in nearest]
            return min(tried, key=lambda taken: round(spread(Counter(has) + Counter(taken)), 12))
    return None


def _shared_out(
    free: Mapping[Domain, int], has: Mapping[Domain, int], missing: int, level: int, most: Bounds
) -> dict[Domain, int]:
    """Over several domains of this level: how much from each, and then inside of each."""
    taken: dict[Domain, int] = {}
    there, own = _grouped(free, level), _grouped(has, level)
    for group, number in (complete(_rooms(free, has, level, most), _by_level(has, level), missing) or {}).items():
        taken |= complete_nested(there[group], own.get(group, {}), number, most) or {}
    return taken


def _rooms(free: Mapping[Domain, int], has: Mapping[Domain, int], level: int, most: Bounds) -> dict[Domain, int]:
    """How much may be taken under each domain of a level: what is free under it, within the bounds of all levels."""
    bounds = [(above, bound, _by_level(has, above)) for above, bound in enumerate(most, start=1) if bound is not None]
    rooms = dict(free)
    for at in range(max(map(len, free), default=0), level - 1, -1):
        rooms = _by_level(rooms, at)
        for above, bound, held in bounds:
            if above <= at:
                rooms = {one: max(0, min(room, bound - held.get(one[:above], 0))) for one, room in rooms.items()}
    return rooms


def _by_level(counts: Mapping[Domain, int], level: int) -> dict[Domain, int]:
    found: Counter[Domain] = Counter()
    for domain, number in counts.items():
        found[domain[:level]] += number
    return found


def _grouped(counts: Mapping[Domain, int], level: int) -> dict[Domain, dict[Domain, int]]:
    found: dict[Domain, dict[Domain, int]] = {}
    for domain, number in counts.items():
        found.setdefault(domain[:level], {})[domain] = number
    return found


def complete(free: Mapping[K, int], has: Mapping[K, int], missing: int) -> dict[K, int] | None:
    """What to take by switch so that a gang which `has` something already has `missing` more; None where they are not
    there. Where it has nothing, no other allocation has less entropy, as of `allocate`; else hardly any has.

    Each time the switch that would have most of the gang in the end, which is the one that has most of it where several
    hold all that is left; of equal ones the one with the fewest free. Where the gang has something, that is tried with
    each of its own switches and of the largest others as the first, and the least entropy counts. Ties by name.
    """
    left: dict[K, int] = {name: have for name, have in free.items() if have > 0}
    if missing < 1 or sum(left.values()) < missing:
        return None if missing > 0 else {}
    left = _needed(left, has, missing)
    own: list[K] = sorted(name for name, number in has.items() if number > 0 and name in left)
    others: list[K] = sorted(left.keys() - set(own), key=lambda one: (-left[one], one)) if own else []
    firsts: list[K | None] = [None]
    firsts.extend(own)
    firsts.extend(others[:_MOST_FIRSTS])
    tried = [_completed(left, has, missing, first) for first in firsts]
    return min(tried, key=lambda taken: round(entropy((Counter(has) + Counter(taken)).values()), 12))


def _needed(left: Mapping[K, int], has: Mapping[K, int], missing: int) -> dict[K, int]:
    """Without those that would never come: of as many free, and nothing of the gang's, only the first names do. Twenty
    thousand switches are no more than a few hundred then."""
    alike: Counter[int] = Counter()
    found: dict[K, int] = {}
    for name in sorted(left):
        free = left[name]
        if has.get(name, 0) == 0:
            alike[free] += 1
            if alike[free] > missing // free + 1:
                continue
        found[name] = free
    return found


def _completed(free: Mapping[K, int], has: Mapping[K, int], missing: int, first: K | None) -> dict[K, int]:
    left, taken = dict(free), dict[K, int]()
    while missing > 0:
        sizes = {name: has.get(name, 0) + min(have, missing) for name, have in left.items()}
        name = first or min(left, key=lambda one: (-sizes[one], free[one], one))
        taken[name] = min(left.pop(name), missing)
        missing, first = missing - taken[name], None
    return taken


def allocate_literally(
    free_gpus: Mapping[K, int], gpus: int, has: Mapping[K, int] | None = None
) -> dict[K, int] | None:
    """The paper's Algorithm 2 as printed: the switch that adds the least entropy, again and again; None where they are
    not there. `has`: what the gang has already.

    It prefers small switches: at each step `p_i` is a share of what is taken so far. Ties by name.
    """
    free = {name: have for name, have in free_gpus.items() if have > 0}
    if gpus < 1 or sum(free.values()) < gpus:
        return None
    free = _needed(free, has or {}, gpus)
    held = Counter({name: number for name, number in (has or {}).items() if number > 0})
    taken: dict[K, int] = {}
    missing = gpus
    while missing > 0:
        name = _least_added(free, held, missing)
        taken[name] = min(free.pop(name), missing)
        held[name] += taken[name]
        missing -= taken[name]
    return taken


def _least_added(free: Mapping[K, int], held: Mapping[K, int], missing: int) -> K:
    """Switches with as much free, and as much of the gang, add the same: each such size is looked at once."""
    sizes = {name: (held.get(name, 0), min(have, missing)) for name, have in free.items()}
    scores = {size: round(entropy(_grown(held.values(), *size)), 12) for size in set(sizes.values())}
    return min(free, key=lambda one: (scores[sizes[one]], one))


def _grown(held: Iterable[int], before: int, more: int) -> list[int]:
    """What is held under each switch, once `more` are taken under one that had `before`."""
    counts = list(held)
    if before:
        counts.remove(before)
    return [*counts, before + more]
