"""Money is an integer number of micro-dollars. It is never a float."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

MICROS_PER_USD = 1_000_000
MS_PER_HOUR = 3_600_000


@dataclass(frozen=True, order=True, slots=True)
class Money:
    """An amount in micro-dollars (1 USD = 1,000,000). May be negative in a difference, never in a price."""

    micros: int = 0

    @classmethod
    def usd(cls, text: str | int | Decimal) -> Money:
        """From dollars written as text, an int or a Decimal; finer than a micro-dollar is a ValueError."""
        micros = Decimal(text) * MICROS_PER_USD
        if micros != micros.to_integral_value():
            raise ValueError(f"{text} has more than six decimals")
        return cls(int(micros))

    def __add__(self, other: Money) -> Money:
        return Money(self.micros + other.micros)

    def __sub__(self, other: Money) -> Money:
        return Money(self.micros - other.micros)

    def __str__(self) -> str:
        sign = "-" if self.micros < 0 else ""
        whole, rest = divmod(abs(self.micros), MICROS_PER_USD)
        decimals = f"{rest:06d}".rstrip("0").ljust(2, "0")
        return f"{sign}${whole}.{decimals}"


ZERO = Money(0)


def total(amounts: Iterable[Money]) -> Money:
    """The exact sum."""
    return Money(sum(amount.micros for amount in amounts))
