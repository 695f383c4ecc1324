"""What the account at the emulated Vast.ai has paid in, and how much of it is spent."""

from __future__ import annotations

from providers.emulators.meter import line_of
from providers.emulators.serving import Grounds

ENOUGH_MICROS = 1_000_000_000  # where no switch says how much was paid in: there is always more


def spent_micros(grounds: Grounds) -> int:
    """All that was ever charged."""
    now_ms = grounds.now_ms()
    return sum(line_of(each, grounds.rule, now_ms).amount_micros for each in grounds.estate.all())


def credit_micros(grounds: Grounds) -> int:
    """What was paid in."""
    return int(grounds.switches["credit_micros"]) or spent_micros(grounds) + ENOUGH_MICROS


def is_broke(grounds: Grounds) -> bool:
    """Nothing is left: everything is stopped, and nothing can be rented."""
    limit = int(grounds.switches["credit_micros"])
    return limit != 0 and spent_micros(grounds) >= limit
