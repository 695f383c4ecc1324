"""What the model is asked with a batch: a summed cross entropy, and how often its first guess was right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.nn import functional

from allpass.recipe.encoding import IGNORED
from workers.trainer.batches import Batch


@dataclass(frozen=True)
class Loss:
    """`total`: summed over what counts, a tensor that can be differentiated. `hits`: right guesses, a tensor. `told`:
    sums of what else is reported, by name."""

    total: Any
    hits: Any
    told: Mapping[str, Any] = field(default_factory=dict)


def next_token_loss(model: Any, batch: Batch) -> Loss:
    """Of a causal model: each target is predicted from what precedes it."""
    return _cross_entropy(*_all(model, batch))


def answers_loss(model: Any, batch: Batch) -> Loss:
    """As `next_token_loss`, of a model that is asked for no other logits than those that count: of a long prompt with
    a short answer that is a small part, and logits are the largest tensor there is."""
    return _cross_entropy(*_asked(model, batch))


def log_probabilities(model: Any, batch: Batch, *, takes_places: bool) -> Any:
    """Of what is learned of each line, after what precedes it: (lines,). `takes_places`: as in `answers_loss`."""
    logits, targets = (_asked if takes_places else _all)(model, batch)
    each = functional.cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="none")
    return -each.view(len(batch.ids), -1).sum(dim=1)


def label_loss(model: Any, batch: Batch) -> Loss:
    """Of a classifier: each row has one label."""
    logits = model(input_ids=batch.ids, attention_mask=batch.attention).logits
    return _cross_entropy(logits, batch.targets)


def _all(model: Any, batch: Batch) -> tuple[Any, Any]:
    """Logits of all tokens, and what should have followed each."""
    logits = model(**_given(batch)).logits
    return logits[:, :-1].flatten(0, 1), batch.targets[:, 1:].flatten()


def _asked(model: Any, batch: Batch) -> tuple[Any, Any]:
    """The same, of the places where something is learned in any line."""
    asked = (batch.targets[:, 1:] != IGNORED).any(dim=0).nonzero().flatten()
    logits = model(logits_to_keep=asked, **_given(batch)).logits
    return logits.flatten(0, 1), batch.targets[:, asked + 1].flatten()


def _given(batch: Batch) -> dict[str, Any]:
    """What a causal model is called with."""
    told = {"input_ids": batch.ids, "attention_mask": batch.attention, "position_ids": batch.positions}
    return {"use_cache": False, **{name: value for name, value in told.items() if value is not None}}


def _cross_entropy(logits: Any, targets: Any) -> Loss:
    total = functional.cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="sum")
    hits = ((logits.argmax(dim=-1) == targets) & (targets != IGNORED)).sum()
    return Loss(total, hits)
