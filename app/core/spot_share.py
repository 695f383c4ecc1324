"""What spot jobs pay of the price of a pool's machines: a share, which the pool's owner sets and may change (ADR 0099).

In whole numbers alone. What a share leaves of one amount is seldom a whole number of micro-dollars; the rest is carried
to the next amount, so that all that was ever paid of a machine is exact, however often its meter is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FULL = 1_000_000  # parts of a price: all of it


@dataclass(frozen=True, slots=True)
class SpotShare:
    """From this instant on a spot job pays so many millionths of the price."""

    from_ms: int
    parts: int


def share_at(shares: Sequence[SpotShare], at_ms: int) -> int:
    """What counts at that instant; before the first of them, and where there is none, the full price. A share that
    makes no sense counts as the nearest that does: a meter must go on."""
    before = [one for one in shares if one.from_ms <= at_ms]
    if not before:
        return FULL
    return min(max(0, max(before, key=lambda one: one.from_ms).parts), FULL)


def paid_of(amount: int, parts: int, carried: int) -> tuple[int, int]:
    """What is paid of an amount, and what is carried on: millionths of a micro-dollar, fewer than one million.

    Never less than nothing, and never more than the amount. Over any sequence of amounts all that is paid is the sum
    of the exact shares, less what is carried.
    """
    return divmod(amount * parts + carried, FULL)


def at_share(price_micros: int, parts: int) -> int:
    """A price as it is told to people: the nearest micro-dollar, halves up."""
    return (2 * price_micros * parts + FULL) // (2 * FULL)
