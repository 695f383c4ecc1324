"""Rows as tensors of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from allpass.recipe.encoding import IGNORED, Example

_MULTIPLE = 8  # what matrix units like


@dataclass(frozen=True)
class Batch:
    """`ids` and `attention`: (lines, tokens). `targets`: the same shape for a causal model, (lines,) for a classifier.
    `positions`, where a line holds several rows: of each token in its row; there is no `attention` then.

    `counted`: the predictions that its summed loss is over. `places`, where sequences are told apart: the line of each,
    and where it begins and ends there."""

    ids: Any
    attention: Any
    targets: Any
    counted: int
    positions: Any = None
    places: tuple[tuple[int, int, int], ...] = ()


def pad(examples: Sequence[Example], *, padding_id: int, device: Any, labelled: bool) -> Batch:
    """Rows padded at their end to the length of the longest, as a multiple of eight."""
    longest = max(2, *(len(one.ids) for one in examples)) if examples else 2
    length = -(-longest // _MULTIPLE) * _MULTIPLE
    ids = torch.full((len(examples), length), padding_id, dtype=torch.long)
    attention = torch.zeros((len(examples), length), dtype=torch.long)
    targets = torch.full((len(examples), length), IGNORED, dtype=torch.long)
    for number, one in enumerate(examples):
        ids[number, : len(one.ids)] = torch.tensor(one.ids, dtype=torch.long)
        attention[number, : len(one.ids)] = 1
        if not labelled:
            targets[number, : len(one.targets)] = torch.tensor(one.targets, dtype=torch.long)
    if labelled:
        targets = torch.tensor([one.targets[0] for one in examples], dtype=torch.long)
    counted = sum(one.counted for one in examples)
    return Batch(ids.to(device), attention.to(device), targets.to(device), counted)


def join_pairs(lines: Sequence[Sequence[Example]], rows: Sequence[Example], *, padding_id: int, device: Any) -> Batch:
    """As `join`, of `rows` that are pairs: `places` are in their order, wherever the lines have them."""
    batch = join(lines, padding_id=padding_id, device=device)
    found = {}
    for number, line in enumerate(lines):
        end = 0
        for one in line:
            begin, end = end, end + len(one.ids)
            found[id(one)] = number, begin, end
    return replace(batch, counted=len(rows) // 2, places=tuple(found[id(one)] for one in rows))


def pad_pairs(rows: Sequence[Example], *, padding_id: int, device: Any) -> Batch:
    """As `pad`, of rows that are pairs."""
    batch = pad(rows, padding_id=padding_id, device=device, labelled=False)
    places = tuple((number, 0, len(one.ids)) for number, one in enumerate(rows))
    return replace(batch, counted=len(rows) // 2, places=places)


def join(lines: Sequence[Sequence[Example]], *, padding_id: int, device: Any) -> Batch:
    """Rows of a causal model, several in a line where there are several. Nothing is asked of a row's first token: the
    one before it is another row's. What fills up a line at its end is a row of its own, of which nothing is asked."""
    length = max(2, *(sum(len(one.ids) for one in line) for line in lines)) if lines else 2
    ids = torch.full((len(lines), length), padding_id, dtype=torch.long)
    positions = torch.zeros((len(lines), length), dtype=torch.long)
    targets = torch.full((len(lines), length), IGNORED, dtype=torch.long)
    for number, line in enumerate(lines):
        end = 0
        for one in line:
            begin, end = end, end + len(one.ids)
            ids[number, begin:end] = torch.tensor(one.ids, dtype=torch.long)
            positions[number, begin:end] = torch.arange(end - begin)
            targets[number, begin + 1 : end] = torch.tensor(one.targets[1:], dtype=torch.long)
        positions[number, end:] = torch.arange(length - end)
    counted = sum(one.counted for line in lines for one in line)
    is_joined = any(len(line) > 1 for line in lines)
    return Batch(ids.to(device), None, targets.to(device), counted, positions.to(device) if is_joined else None)
