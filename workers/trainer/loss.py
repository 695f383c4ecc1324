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
    logits = model(**_given(batch)).logits
    return _cross_entropy(logits[:, :-1].flatten(0, 1), batch.targets[:, 1:].flatten())


def answers_loss(model: Any, batch: Batch) -> Loss:
    """As `next_token_loss`, of a model that is asked for no other logits than those that count: of a long prompt with
    a short answer that is a small part, and logits are the largest tensor there is."""
    asked = (batch.targets[:, 1:] != IGNORED).any(dim=0).nonzero().flatten()
    logits = model(logits_to_keep=asked, **_given(batch)).logits
    return _cross_entropy(logits.flatten(0, 1), batch.targets[:, asked + 1].flatten())


def label_loss(model: Any, batch: Batch) -> Loss:
    """Of a classifier: each row has one label."""
    logits = model(input_ids=batch.ids, attention_mask=batch.attention).logits
    return _cross_entropy(logits, batch.targets)


def _given(batch: Batch) -> dict[str, Any]:
    """What a causal model is called with."""
    told = {"input_ids": batch.ids, "attention_mask": batch.attention, "position_ids": batch.positions}
    return {"use_cache": False, **{name: value for name, value in told.items() if value is not None}}


def _cross_entropy(logits: Any, targets: Any) -> Loss:
    total = functional.cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="sum")
    hits = ((logits.argmax(dim=-1) == targets) & (targets != IGNORED)).sum()
    return Loss(total, hits)
