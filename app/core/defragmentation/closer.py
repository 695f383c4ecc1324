"""Where the machines of a job on several would be closer to each other than they are. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from app.core.topology import Bounds, Domain, SwitchRule, choose, spread

_LEAST = 1e-9  # by which a spread is less than another one


@dataclass(frozen=True, slots=True)
class Closer:
    """`places`: that it needs beside those it has. `after`: how many machines it has under each rack and switch then,
    of those it has and these."""

    places: tuple[str, ...]
    after: Mapping[Domain, int]


def closer(
    rule: SwitchRule, here: Mapping[str, Domain], free: Mapping[str, Domain], most: Bounds = ()
) -> Closer | None:
    """Of the ways to be strictly less spread that with the least spread, and of these one with few other machines.
    `here`: where it has its machines, `free`: where it could have one, the first of each domain first; `most`: how many
    may be under one. None where there is no such way.

    Tried are: all of its machines anew by the rule, and that with those of some of its switches, or racks, left where
    they are. What counts is where it begins once it has both, which is chosen by the same rule."""
    now = Counter(here.values())
    by_domain: dict[Domain, list[str]] = {}
    for place, domain in free.items():
        by_domain.setdefault(domain, []).append(place)
    found = []
    for kept in _kept(now):
        chosen = choose(rule, _seats(now, by_domain, kept), kept, len(here) - kept.total(), most)
        if not chosen:
            continue
        places = [
            place
            for domain, number in chosen.items()
            for place in by_domain.get(domain, [])[: max(0, number - (now[domain] - kept[domain]))]
        ]
        after = reached(rule, here, {place: free[place] for place in places}, most)
        if after is not None and is_closer(after, now):
            found.append((round(spread(after), 9), len(places), tuple(sorted(places)), after))
    if not found:
        return None
    _, _, others, there = min(found, key=lambda one: one[:3])
    return Closer(others, there)


def reached(
    rule: SwitchRule, here: Mapping[str, Domain], others: Mapping[str, Domain], most: Bounds = ()
) -> Mapping[Domain, int] | None:
    """Where it begins that has these machines beside its own; None where not within the bounds."""
    return choose(rule, Counter(here.values()) + Counter(others.values()), {}, len(here), most)


def is_closer(after: Mapping[Domain, int], before: Mapping[Domain, int]) -> bool:
    return spread(after) < spread(before) - _LEAST


def _seats(now: Counter[Domain], free: Mapping[Domain, list[str]], kept: Counter[Domain]) -> dict[Domain, int]:
    """Under each: what is free, and those of its own that are not to stay anyway."""
    own = now - kept
    return {domain: len(free.get(domain, ())) + own[domain] for domain in sorted({*free, *own})}


def _kept(now: Counter[Domain]) -> Iterator[Counter[Domain]]:
    """Which of its machines may stay: none, those of one switch or one rack, those of its largest switches."""
    ranked = sorted(now, key=lambda domain: (-now[domain], domain))
    racks = sorted({domain[:1] for domain in now})
    sets = [ranked[:number] for number in range(len(ranked))]
    sets += [[domain] for domain in ranked[1:]]
    sets += [[domain for domain in ranked if domain[:1] == rack] for rack in racks]
    for kept in sets:
        found = Counter({domain: now[domain] for domain in kept})
        if found.total() < now.total():
            yield found
