"""How the rows of a step are cut into what goes through the model at once, so that little of it is padding. Pure.

A pure function of the rows, as the choice of rows is one of (seed, step): every machine cuts alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from allpass.recipe.encoding import Example

Rows = list[Example]
T = TypeVar("T")
_MOST_PADDING = 1 / 50  # of the tokens of joined rows
_SMALL = 4096  # tokens in a line, of which a mask is 16 MiB


def as_drawn(rows: Sequence[T], most_rows: int) -> list[list[T]]:
    """In the order they have."""
    return [list(rows[first : first + most_rows]) for first in range(0, len(rows), most_rows)]


def by_length(rows: Sequence[Example], most_rows: int) -> list[Rows]:
    """Long ones with long ones, and these first: what needs the most memory does so at once."""
    return as_drawn(sorted(rows, key=_length, reverse=True), most_rows)  # which keeps the order of equals


def pairs_by_length(rows: Sequence[Example], most_pairs: int) -> list[Rows]:
    """Of sequences of which two after each other are a pair: these stay together."""
    return _apart(as_drawn(sorted(_pairs(rows), key=_longest, reverse=True), most_pairs))


def pairs_evenly(rows: Sequence[Example], most_pairs: int) -> list[Rows]:
    """The same, as `evenly` does."""
    pairs = _pairs(rows)
    return _apart(_dealt(pairs, -(-len(pairs) // most_pairs), most_pairs, _tokens))


def evenly(rows: Sequence[Example], most_rows: int) -> list[Rows]:
    """Into as few parts, each with about as many tokens as any other: for rows that are joined, which need not be
    alike, the peak of memory is then lowest."""
    return _dealt(rows, -(-len(rows) // most_rows), most_rows, _length)


def joined(rows: Sequence[Example]) -> list[Rows]:
    """The rows of each line of a batch: as many lines as there can be with hardly any padding, else those with the
    least of it. Attention, and the mask that it may need, is paid for by the square of a line's length: what all lines
    come to is no more than a line for each row would, unless both are small."""
    lengths = [len(one.ids) for one in rows]
    total, most = sum(lengths), max(_SMALL**2, len(rows) * max(lengths) ** 2)
    best, least = [[one] for one in rows], len(rows) * max(lengths) - total
    for count in range(len(rows) - 1, 0, -1):
        if least <= _MOST_PADDING * total:
            break
        lines = _dealt(rows, count, len(rows), _length)
        longest = max(map(_tokens, lines))
        padding = count * longest - total
        if padding < least and count * longest**2 <= most:
            best, least = lines, padding
    return best


def _dealt(rows: Sequence[T], parts: int, most_rows: int, size: Callable[[T], int]) -> list[list[T]]:
    """The longest row goes first, each to whichever part has the fewest tokens and still room."""
    dealt: list[list[T]] = [[] for _ in range(parts)]
    tokens = [0] * parts
    for row in sorted(rows, key=size, reverse=True):  # which keeps the order of equals
        part = min((number for number in range(parts) if len(dealt[number]) < most_rows), key=tokens.__getitem__)
        dealt[part].append(row)
        tokens[part] += size(row)
    return dealt


def _pairs(rows: Sequence[Example]) -> list[Rows]:
    return as_drawn(rows, 2)


def _apart(parts: Sequence[Sequence[Rows]]) -> list[Rows]:
    return [[one for pair in part for one in pair] for part in parts]


def _length(row: Example) -> int:
    return len(row.ids)


def _longest(rows: Rows) -> int:
    return max(map(_length, rows))


def _tokens(rows: Rows) -> int:
    return sum(map(_length, rows))
