"""The company's own arithmetic for what a machine costs.

Written apart from the service's billing on purpose: a customer who checks a bill with the seller's own code has checked
nothing. This one works in exact fractions of a dollar-hour; every started unit is charged; rounding happens once per
machine, half up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from providers.local.market import RULES
from providers.local.store import MachineRow

_MS_PER_HOUR = 3_600_000


@dataclass(frozen=True, slots=True)
class BillLine:
    """What one machine has cost until `to_ms`. `from_ms` is None, and the amount zero, if billing never began."""

    machine_id: str
    label: str | None
    unit_ms: int
    price_micros_per_hour: int
    from_ms: int | None
    to_ms: int | None
    final: bool
    amount_micros: int


def bill_of(machine: MachineRow, now_ms: int) -> BillLine:
    """The line of this machine, as it stands at `now_ms`."""
    rules = RULES[machine.rental_class]
    begin = machine.created_ms if rules.billed_from_request else machine.ready_ms
    end = now_ms if machine.ended_ms is None else machine.ended_ms
    return BillLine(
        machine_id=machine.machine_id,
        label=machine.label,
        unit_ms=rules.billing_unit_ms,
        price_micros_per_hour=machine.price_micros_per_hour,
        from_ms=begin,
        to_ms=None if begin is None or machine.ended_ms is None else max(begin, end),
        final=machine.ended_ms is not None,
        amount_micros=0
        if begin is None
        else amount_micros(machine.price_micros_per_hour, rules.billing_unit_ms, begin, end),
    )


def amount_micros(price_micros_per_hour: int, unit_ms: int, from_ms: int, to_ms: int) -> int:
    """The price of the started units between two instants, rounded half up to a micro-dollar.

    Nothing when the end lies before the beginning.
    """
    started_units = -((from_ms - max(from_ms, to_ms)) // unit_ms)
    exact = Fraction(started_units * unit_ms * price_micros_per_hour, _MS_PER_HOUR)
    return math.floor(exact + Fraction(1, 2))
