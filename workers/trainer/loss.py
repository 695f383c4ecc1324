"""What the model is asked with a batch: a summed cross entropy, and how often its first guess was right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.nn import functional

from allpass.recipe.encoding import IGNORED
from workers.trainer.batches import Batch


@dataclass(frozen=True)
class Loss:
    """`total`: summed over what counts, a tensor that can be differentiated. `hits`: right guesses, a tensor."""

    total: Any
    hits: Any


def next_token_loss(model: Any, batch: Batch) -> Loss:
    """Of a causal model: each target is predicted from what precedes it."""
    logits = model(input_ids=batch.ids, attention_mask=batch.attention, use_cache=False).logits
    return _cross_entropy(logits[:, :-1].flatten(0, 1), batch.targets[:, 1:].flatten())


def label_loss(model: Any, batch: Batch) -> Loss:
    """Of a classifier: each row has one label."""
    logits = model(input_ids=batch.ids, attention_mask=batch.attention).logits
    return _cross_entropy(logits, batch.targets)


def _cross_entropy(logits: Any, targets: Any) -> Loss:
    total = functional.cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="sum")
    hits = ((logits.argmax(dim=-1) == targets) & (targets != IGNORED)).sum()
    return Loss(total, hits)
