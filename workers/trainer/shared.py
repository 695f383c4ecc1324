"""One model for two jobs: everything that is trained is theirs in common, but for the heads of classifiers."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from workers.trainer.learned import HEADS
from workers.trainer.model import Prepared


class Shared(torch.nn.Module):
    """`prepared` is made for the first job. Its parameters are those of the model and of all further heads.

    `labels`: of each job, in order; empty where there is no head. `own_heads`: each job has one even where the labels
    are the same (side by side); else only where they differ (in turn).
    """

    def __init__(self, prepared: Prepared, labels: Sequence[tuple[str, ...]], *, own_heads: bool) -> None:
        super().__init__()
        self.prepared = prepared
        self.model = prepared.model
        self._labels = tuple(labels)
        self._is_swapped = False
        self.heads = torch.nn.ModuleDict()
        for number, own in enumerate(self._labels[1:], 1):
            if own and (own_heads or own != self._labels[0]):
                self.heads[str(number)] = _fresh_head(self._head(), len(own), number)

    @contextlib.contextmanager
    def of(self, number: int) -> Iterator[Any]:
        """The model as that job has it, with its head and the names of its labels."""
        if str(number) not in self.heads or self._is_swapped:
            yield self.model
            return
        first = self._head()
        self._set(self.heads[str(number)], self._labels[number])
        self._is_swapped = True
        try:
            yield self.model
        finally:
            self._set(first, self._labels[0])
            self._is_swapped = False

    def has_own_head(self, number: int) -> bool:
        return str(number) in self.heads

    def _place(self) -> tuple[Any, str]:
        """The module that holds the head, and under which name."""
        for path, module in self.model.named_modules():
            name = path.rpartition(".")[2]
            if name in HEADS:
                if hasattr(module, "modules_to_save"):  # PEFT keeps the head that is trained beside the original one
                    return module.modules_to_save, "default"
                return self.model.get_submodule(path.rpartition(".")[0]), name
        raise ValueError(f"the model has none of {HEADS}: two of its classifiers cannot be trained together")

    def _head(self) -> Any:
        holder, name = self._place()
        return holder.get_submodule(name)

    def _set(self, head: Any, labels: tuple[str, ...]) -> None:
        holder, name = self._place()
        holder.add_module(name, head)
        self.model.config.id2label = dict(enumerate(labels))
        self.model.config.label2id = {label: number for number, label in enumerate(labels)}


def _fresh_head(like: Any, labels: int, seed: int) -> Any:
    """A head of the same make, drawn anew, whose last matrix has a row for each label."""
    drawn = torch.Generator().manual_seed(seed)
    head = copy.deepcopy(like)
    holder, name = head, ""
    linears = [path for path, module in head.named_modules() if isinstance(module, torch.nn.Linear)]
    if not linears:
        raise ValueError(f"a head of {type(like).__name__} has no linear layer to draw anew")
    holder, _, name = linears[-1].rpartition(".")
    last = head.get_submodule(linears[-1])
    made = torch.nn.Linear(last.in_features, labels, bias=last.bias is not None).to(last.weight)
    head = made if not name else head
    if name:
        head.get_submodule(holder).add_module(name, made)
    with torch.no_grad():
        for parameter in head.parameters():
            value = torch.randn(parameter.shape, generator=drawn) * 0.02 if parameter.ndim > 1 else 0.0
            parameter.copy_(torch.as_tensor(value).to(parameter))
    return head
