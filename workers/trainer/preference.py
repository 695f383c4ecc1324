"""Which of two answers is the better one: direct preference optimization (Rafailov et al. 2023, equation 7).

The model is to hold the chosen answer for likelier than the rejected one, by more than the reference does, which is
what training began with: the same model with its adapter off, or with the adapter that it goes on from as that was
given. What the reference says is computed in the same step: nothing of it is kept, so that nothing can be lost or be of
other bits on another machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

from workers.trainer.batches import Batch
from workers.trainer.loss import Loss


class ReferenceModel:
    """What a model was when this was made: before anything is resumed. `has_own_adapter`: it goes on from one, whose
    weights are copied; a new one says nothing yet, and is left off."""

    def __init__(self, model: Any, *, has_own_adapter: bool) -> None:
        self._begun = {name: one.detach().clone() for name, one in _trained(model)} if has_own_adapter else None

    @contextlib.contextmanager
    def of(self, model: Any) -> Iterator[Any]:
        """The model as it was; what it has learned is put back after."""
        if self._begun is None:
            with model.disable_adapter():
                yield model
            return
        learned = {name: one.data for name, one in _trained(model)}
        try:
            _give(model, self._begun)
            yield model
        finally:
            _give(model, learned)


def preference_loss(
    reference: ReferenceModel, beta: float, log_probabilities: Callable[[Any, Batch], Any]
) -> Callable[[Any, Batch], Loss]:
    """Of batches of pairs, the chosen answer before the rejected one. `log_probabilities`: of each sequence, by a
    model."""

    def loss(model: Any, batch: Batch) -> Loss:
        with torch.no_grad(), reference.of(model):
            before = log_probabilities(model, batch)
        rewards = beta * (log_probabilities(model, batch) - before)
        chosen, rejected = rewards[0::2], rewards[1::2]
        margins = chosen - rejected
        hits = (margins > 0).sum()
        told = {"accuracy": hits, "reward_margin": margins, "reward_chosen": chosen, "reward_rejected": rejected}
        sums = {name: values.detach().sum() for name, values in told.items()}
        return Loss(-functional.logsigmoid(margins).sum(), hits, sums)

    return loss


def leave_dropout_out(model: Any) -> None:
    """Have a model say the same of a text each time: with a part of it left out by chance it would differ from its
    reference before it has learned anything."""
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):  # of those that are given to functions
                setattr(module, name, 0.0)


def _trained(model: Any) -> Iterator[tuple[str, Any]]:
    return ((name, one) for name, one in model.named_parameters() if one.requires_grad)


def _give(model: Any, values: dict[str, Any]) -> None:
    for name, one in _trained(model):
        one.data = values[name]
