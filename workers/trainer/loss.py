"""What the model is asked with a batch: a summed cross entropy, and how often its first guess was right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
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
    return _cross_entropy(*_all(model, batch)[1:])


def answers_loss(model: Any, batch: Batch) -> Loss:
    """As `next_token_loss`, of a model that is asked for no other logits than those that count: of a long prompt with
    a short answer that is a small part, and logits are the largest tensor there is."""
    return _cross_entropy(*_asked(model, batch)[1:])


def log_probabilities(model: Any, batch: Batch, *, takes_logits_to_keep: bool) -> Any:
    """Of what is learned of each sequence in `batch.places`, after what precedes it. `takes_logits_to_keep`: whether
    the model lets one choose of which tokens it gives logits."""
    asked, logits, targets = _asked(model, batch) if takes_logits_to_keep else _all(model, batch)
    each = functional.cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="none")
    each = each.view(len(batch.ids), -1)
    # Sums over what lies side by side are of the same bits each time, on GPUs as well; sums by number are not.
    bounds = torch.searchsorted(asked, torch.tensor([place[1:] for place in batch.places], device=asked.device) - 1)
    found = zip(batch.places, bounds.tolist(), strict=True)
    return -torch.stack([each[line, first:last].sum() for (line, _, _), (first, last) in found])


def label_loss(model: Any, batch: Batch) -> Loss:
    """Of a classifier: each row has one label."""
    logits = model(input_ids=batch.ids, attention_mask=batch.attention).logits
    return _cross_entropy(logits, batch.targets)


def given(batch: Batch) -> dict[str, Any]:
    """What a causal model is called with."""
    told = {"input_ids": batch.ids, "attention_mask": batch.attention, "position_ids": batch.positions}
    return {"use_cache": False, **{name: value for name, value in told.items() if value is not None}}


def _all(model: Any, batch: Batch) -> tuple[Any, Any, Any]:
    """All places but the last, their logits, and what should have followed each."""
    logits = model(**given(batch)).logits
    places = torch.arange(batch.ids.shape[1] - 1, device=batch.ids.device)
    return places, logits[:, :-1].flatten(0, 1), batch.targets[:, 1:].flatten()


def _asked(model: Any, batch: Batch) -> tuple[Any, Any, Any]:
    """The same, of the places where something is learned in any line."""
    asked = (batch.targets[:, 1:] != IGNORED).any(dim=0).nonzero().flatten()
    logits = model(logits_to_keep=asked, **given(batch)).logits
    return asked, logits.flatten(0, 1), batch.targets[:, asked + 1].flatten()


def _cross_entropy(logits: Any, targets: Any) -> Loss:
    total = functional.cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="sum")
    hits = ((logits.argmax(dim=-1) == targets) & (targets != IGNORED)).sum()
    return Loss(total, hits)
