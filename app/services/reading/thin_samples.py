"""What a run used, as a picture needs it: stretches in place of samples, each with the mean of what goes up and down
and the most of what has to fit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from app.db.runs.system import SampleRow

_MOST_OF = "bytes"  # of memory the most counts: it is what runs out


def thin_samples(rows: Sequence[SampleRow], most: int) -> list[SampleRow]:
    """At most so many, in order; each stands where its stretch ends."""
    if len(rows) <= most:
        return list(rows)
    bounds = [place * len(rows) // most for place in range(most + 1)]
    return [_together(rows[low:high]) for low, high in pairwise(bounds)]


def _together(rows: Sequence[SampleRow]) -> SampleRow:
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.values.items():
            found.setdefault(name, []).append(float(value))
    values = {name: max(list_) if name.endswith(_MOST_OF) else _mean(list_) for name, list_ in found.items()}
    return SampleRow(rows[-1].at_ms, values)


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 2)
