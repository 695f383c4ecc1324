"""Amounts of what a node has, as vectors: what a job needs, holds, frees or lacks.

The pool says what each place of a vector is: one for every kind of GPU, in GPUs, and where they matter one for
processors in thousandths and one for memory in bytes. All vectors of a pool have the same length.
"""

from __future__ import annotations

Amounts = tuple[int, ...]


def plus(one: Amounts, other: Amounts) -> Amounts:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def lacking(need: Amounts, there: Amounts) -> Amounts:
    """What is missing of the need, never below zero."""
    return tuple(max(0, a - b) for a, b in zip(need, there, strict=True))


def covers(there: Amounts, need: Amounts) -> bool:
    return all(a >= b for a, b in zip(there, need, strict=True))


def times(amounts: Amounts, count: int) -> Amounts:
    return tuple(one * count for one in amounts)


def how_often(need: Amounts, there: Amounts) -> int:
    """How often the need fits into what is there; a need of nothing is a ValueError."""
    if min(need) < 0 or not any(need):
        raise ValueError(f"{need} is no need: give amounts of at least 0, and one above")
    return max(0, min(b // a for a, b in zip(need, there, strict=True) if a))
