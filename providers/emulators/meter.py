"""An emulated company's own arithmetic for what a machine costs, from the stretches of its life.

Written apart from the service's billing on purpose: a customer who checks a bill with the seller's own code has checked
nothing. This one works in exact fractions; every started unit of a billed stretch is charged; rounding to a
micro-dollar happens once per machine, half up.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fractions import Fraction

from providers.emulators.rows import Interval, MachineRow, MachineState

BESIDE = "beside_micros"  # in a machine's facts: what it costs besides time and storage (traffic), or gets back
_MS_PER_HOUR = 3_600_000


@dataclass(frozen=True, slots=True)
class Rule:
    """How a company charges: the machine's price in started units of `unit_ms` while it is in one of `states`.

    Each stretch counts for at least `minimum_ms`. Its storage price is charged to the millisecond while it exists.
    """

    unit_ms: int
    states: frozenset[MachineState] = frozenset({MachineState.RUNNING})
    minimum_ms: int = 0


FROM_REQUEST = frozenset({MachineState.BOOTING, MachineState.RUNNING})
MODAL_RULE = Rule(1_000)  # from the container's start to its end
VAST_RULE = Rule(1_000)  # while running; storage always
RUNPOD_RULE = Rule(1_000)  # while running, the container's disk with it
LAMBDA_RULE = Rule(60_000)  # from passed health checks to termination, in started minutes


@dataclass(frozen=True, slots=True)
class BillLine:
    """What one machine has cost so far. `from_ms` is None if nothing was ever charged for running.

    `amount_micros` is the whole: running and storage, rounded once, and what is BESIDE them.
    """

    ref: str
    label: str | None
    state: MachineState
    price_micros_per_hour: int
    from_ms: int | None
    to_ms: int | None
    final: bool
    billed_ms: int
    amount_micros: int


def line_of(machine: MachineRow, rule: Rule, now_ms: int) -> BillLine:
    """The line of this machine, as it stands at `now_ms`."""
    stretches = _stretches(machine.intervals, rule.states)
    running, billed_ms = Fraction(0), 0
    for stretch in stretches:
        units_ms = _charged_ms(stretch, rule, now_ms)
        billed_ms += units_ms
        running += Fraction(units_ms * stretch.price_micros_per_hour, _MS_PER_HOUR)
    until_ms = now_ms if machine.ended_ms is None else machine.ended_ms
    stored_ms = max(0, until_ms - machine.created_ms)
    storage = Fraction(stored_ms * machine.storage_micros_per_hour, _MS_PER_HOUR)
    still_billed = bool(stretches) and stretches[-1].to_ms is None
    return BillLine(
        ref=machine.ref,
        label=machine.label,
        state=machine.state,
        price_micros_per_hour=machine.price_micros_per_hour,
        from_ms=stretches[0].from_ms if stretches else None,
        to_ms=None if still_billed or not stretches else stretches[-1].to_ms,
        final=not machine.is_live,
        billed_ms=billed_ms,
        amount_micros=math.floor(running + storage + Fraction(1, 2)) + int(machine.facts.get(BESIDE, 0)),
    )


def ledger(
    machines: Iterable[MachineRow], rule: Rule, now_ms: int, owned: Collection[str] | None = None
) -> dict[str, object]:
    """All lines with their total; and, with the refs that somebody says he owns, the cost of all others (orphans)."""
    lines = [line_of(machine, rule, now_ms) for machine in machines]
    told: dict[str, object] = {
        "lines": [_json(line) for line in lines],
        "total_micros": sum(line.amount_micros for line in lines),
    }
    if owned is not None:
        orphans = [line for line in lines if line.ref not in owned]
        cost = sum(line.amount_micros for line in orphans)
        told["orphans"] = [line.ref for line in orphans]
        told["live_orphans"] = [line.ref for line in orphans if not line.final]
        told["orphan_cost_micros"] = cost
        told["orphan_cost_usd"] = f"{cost // 1_000_000}.{cost % 1_000_000:06d}"
    return told


def _stretches(intervals: Iterable[Interval], states: frozenset[MachineState]) -> list[Interval]:
    """The billed intervals, those joined that follow each other at the same price."""
    joined: list[Interval] = []
    for each in intervals:
        if each.state not in states:
            continue
        last = joined[-1] if joined else None
        if last and last.to_ms == each.from_ms and last.price_micros_per_hour == each.price_micros_per_hour:
            joined[-1] = Interval(each.state, each.price_micros_per_hour, last.from_ms, each.to_ms)
        else:
            joined.append(each)
    return joined


def _charged_ms(stretch: Interval, rule: Rule, now_ms: int) -> int:
    elapsed_ms = max(stretch.from_ms, now_ms if stretch.to_ms is None else stretch.to_ms) - stretch.from_ms
    if elapsed_ms == 0:
        return 0
    return -(-max(elapsed_ms, rule.minimum_ms) // rule.unit_ms) * rule.unit_ms


def _json(line: BillLine) -> dict[str, object]:
    return {name: getattr(line, name) for name in line.__slots__}
