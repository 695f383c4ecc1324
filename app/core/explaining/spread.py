"""How close to each other the machines of a job on several are: under which switches, and how fast they reach the first
one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.core.explaining.facts import Remark
from app.core.model.job import ANY_NUMBER, MostUnderOne
from app.core.topology import SwitchRule, entropy

_MOST_NAMED = 8
_RULES = {
    SwitchRule.FEWEST: "one that holds all, else as few racks and switches as can be",
    SwitchRule.LITERAL: "Algorithm 2 of the SpotGPU paper: again and again the one that adds the least entropy",
}


@dataclass(frozen=True, slots=True)
class SeenSeat:
    """One machine of a job on several. `switch`: as its owner says it; empty where nobody does, None of a machine that
    is no host of a pool. `rack`: likewise, of hosts. `network_bits_per_s`: measured between the first machine and this
    one before any code ran."""

    rank: int
    switch: str | None
    network_bits_per_s: int | None
    rack: str = ""


def spread_of(seats: Sequence[SeenSeat]) -> Iterator[Remark]:
    """Nothing for a job on one machine."""
    if len(seats) < 2:
        return
    switches = [seat.switch for seat in seats if seat.switch is not None]
    if switches:
        yield _switches(switches)
        yield from _racks([seat.rack for seat in seats if seat.switch is not None])
    measured = {seat.rank: seat.network_bits_per_s for seat in seats if seat.network_bits_per_s is not None}
    if measured:
        data = {"network_bits_per_s": {str(rank): speed for rank, speed in sorted(measured.items())}}
        yield Remark(f"before its code ran{met(measured)}", data)


def bound_of(seats: Sequence[SeenSeat], most: MostUnderOne) -> Iterator[Remark]:
    """What its template asks for, and whether it is so: labels of hosts can change under a job that runs."""
    if most == ANY_NUMBER or len(seats) < 2:
        return
    beyond = []
    for bound, names, where in (
        (most.switch, [seat.switch for seat in seats], "under"),
        (most.rack, [seat.rack for seat in seats], "in"),
    ):
        (name, count) = Counter(names).most_common(1)[0]
        if bound is not None and count > bound:
            beyond.append(f"{count} are {where} {name or 'one that nobody says'}")
    changed = f", and now {' and '.join(beyond)}: labels have changed since it began" if beyond else ""
    data = {"most_per_rack": most.rack, "most_per_switch": most.switch, "is_within": not beyond}
    yield Remark(f"it asks for {most.in_words()}{changed}", data)


def chosen_by(rule: str) -> Remark:
    """By which rule its switches were chosen, in the words of its event: another release may have had others."""
    how = next((f": {words}" for known, words in _RULES.items() if known == rule), "")
    return Remark(f"its switches were chosen by the rule {rule} (ALLPASS_GANG_SWITCHES){how}", {"chosen_by": rule})


def met(measured: Mapping[int, int]) -> str:
    """The slowest and the fastest way from the first machine, by the rank of the other one."""
    if not measured:
        return ""
    slowest = min(measured, key=lambda rank: (measured[rank], rank))
    fastest = max(measured, key=lambda rank: (measured[rank], -rank))
    if len(measured) == 1:
        return f", machine {slowest} reached machine 0 at {_speed(measured[slowest])}"
    return (
        f", the others reached machine 0 at {_speed(measured[slowest])} (machine {slowest}) to "
        f"{_speed(measured[fastest])} (machine {fastest})"
    )


def _switches(switches: Sequence[str]) -> Remark:
    """Hosts of which nobody says it are taken to be under one switch, as they are where machines are chosen."""
    known, counts, spread = _counted(switches)
    data = {"switches": {name: counts[name] for name in known}, "without_switch": counts[""], "entropy": spread}
    if not known:
        return Remark(f"nobody says which switch its {len(switches)} machines are under (allpass pool label)", data)
    if len(known) == 1 and not counts[""]:
        return Remark(f"all {len(switches)} machines are under switch {known[0]}", data)
    named = _named(known, counts, "under")
    return Remark(f"its {len(switches)} machines are spread: {named} (entropy {spread:.2f})", data)


def _racks(racks: Sequence[str]) -> Iterator[Remark]:
    """Nothing where nobody says any."""
    known, counts, spread = _counted(racks)
    data = {"racks": {name: counts[name] for name in known}, "without_rack": counts[""], "entropy": spread}
    if len(known) == 1 and not counts[""]:
        yield Remark(f"all {len(racks)} machines are in rack {known[0]}", data)
    elif known:
        yield Remark(f"they are in several racks: {_named(known, counts, 'in')} (entropy {spread:.2f})", data)


def _counted(names: Sequence[str]) -> tuple[list[str], Counter[str], float]:
    """Those that somebody says, the most first; how many are of each; the entropy."""
    counts = Counter(names)
    known = sorted((name for name in counts if name), key=lambda name: (-counts[name], name))
    return known, counts, round(entropy(counts.values()), 4)


def _named(known: Sequence[str], counts: Counter[str], where: str) -> str:
    named = [f"{counts[name]} {where} {name}" for name in known[:_MOST_NAMED]]
    if len(known) > _MOST_NAMED:
        rest = known[_MOST_NAMED:]
        named.append(f"{sum(counts[name] for name in rest)} {where} {len(rest)} others")
    if counts[""]:
        named.append(f"{counts['']} {where} one that nobody says")
    return ", ".join(named)


def _speed(bits_per_s: int) -> str:
    return f"{bits_per_s / 1e9:.1f} Gbit/s" if bits_per_s >= 50_000_000 else f"{bits_per_s / 1e6:.1f} Mbit/s"
