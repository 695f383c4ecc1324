"""Reading what Vast.ai sends: numbers may be texts, texts may carry white space, anything may be null."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any

from app.core.model.money import MICROS_PER_USD, Money

Row = Mapping[str, Any]

_MONTH_H = 720  # the month in which Vast.ai prices disks
_MOST_DIGITS = 40


def number(row: Row, name: str) -> Decimal | None:
    """A finite number, also when it comes as text; None for everything else."""
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float | str) or len(str(value)) > _MOST_DIGITS:
        return None
    try:
        read = Decimal(str(value).strip())
    except InvalidOperation:
        return None
    return read if read.is_finite() else None


def whole(row: Row, name: str) -> int | None:
    """A number without its decimals."""
    read = number(row, name)
    return None if read is None else int(read)


def text(row: Row, name: str) -> str:
    """A text without white space around it; empty when there is none."""
    value = row.get(name)
    return str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""


def dollars(amount: Decimal) -> Money:
    """Rounded half up to a micro-dollar."""
    return Money(int((amount * MICROS_PER_USD).quantize(Decimal(1), rounding=ROUND_HALF_UP)))


def disk_per_hour(row: Row, disk_gb: int) -> Decimal:
    """Dollars an hour for a disk of this size; nothing where no price is named."""
    return disk_gb * (number(row, "storage_cost") or Decimal(0)) / _MONTH_H


def price_per_hour(row: Row, disk_gb: int) -> Decimal | None:
    """Dollars an hour as they will be billed: GPUs, and a disk of this size. None when no price is named."""
    base = number(row, "dph_base")
    if base is None:
        return number(row, "dph_total")
    return base + disk_per_hour(row, disk_gb)
