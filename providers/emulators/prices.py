"""Prices per GPU and hour that emulators start from: one consistent set, of one month and one method.

Allpass paper, Table 2: list prices of 2025-10-25; of the marketplace the median with lowest and highest over the month
before. None: the company does not rent it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Published:
    """Dollars per GPU and hour; `vast` is (lowest, median, highest)."""

    memory_bytes: int
    modal: str | None
    vast: tuple[str, str, str] | None
    lambda_cloud: str | None


PUBLISHED = {
    "T4": Published(16 * _GIB, "0.59", ("0.14", "0.14", "0.15"), None),
    "L4": Published(24 * _GIB, "0.80", ("0.38", "0.38", "0.39"), None),
    "A10": Published(24 * _GIB, "1.10", ("0.25", "0.26", "0.26"), "0.75"),
    "L40S": Published(48 * _GIB, "1.95", ("0.60", "0.68", "0.72"), None),
    "RTX4090": Published(24 * _GIB, None, ("0.17", "0.42", "0.92"), None),
    "V100": Published(16 * _GIB, None, ("0.11", "0.21", "0.26"), "0.55"),
    "A100": Published(40 * _GIB, "2.10", ("0.38", "1.08", "1.66"), "1.29"),
    "H100": Published(80 * _GIB, "3.96", ("1.53", "2.05", "2.62"), "2.49"),
}


def micros(usd: str) -> int:
    """Dollars as text, in micro-dollars."""
    return int(Decimal(usd) * 1_000_000)
