"""Rows as tensors of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from allpass.recipe.encoding import IGNORED, Example

_MULTIPLE = 8  # what matrix units like


@dataclass(frozen=True)
class Batch:
    """`ids` and `attention`: (rows, tokens). `targets`: the same shape for a causal model, (rows,) for a classifier.

    `counted`: the predictions that its summed loss is over."""

    ids: Any
    attention: Any
    targets: Any
    counted: int


def collate(examples: Sequence[Example], *, padding_id: int, device: Any, labelled: bool) -> Batch:
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
