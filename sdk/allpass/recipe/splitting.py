"""Rows that are kept aside to measure with: chosen by what is in them and a seed, so that nothing else matters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any


def numbers_held_out(rows: Sequence[Mapping[str, Any]], fraction: float, seed: int) -> list[int]:
    """Which rows are held out, in order.

    Of each label (all rows alike where there are none), about that fraction is held out, and at least one row stays to
    train on. Equal rows are on the same side: what was trained on is never measured with. Adding rows moves few others.
    """
    strata: dict[str, dict[str, list[int]]] = {}
    for number, row in enumerate(rows):
        text = json.dumps(row, sort_keys=True, ensure_ascii=False)
        rank = hashlib.sha256(f"{seed}\n{text}".encode()).hexdigest()
        strata.setdefault(str(row.get("label", "")), {}).setdefault(rank, []).append(number)
    held_out: set[int] = set()
    for alike in strata.values():
        count = sum(len(numbers) for numbers in alike.values())
        wanted = max(1, round(fraction * count)) if fraction > 0 else 0
        taken = 0
        for rank in sorted(alike)[:-1]:  # the last stays, whatever the fraction
            if taken >= wanted:
                break
            held_out.update(alike[rank])
            taken += len(alike[rank])
    return sorted(held_out)
