"""How much there is at once of what is as wide as a vocabulary: logits, their probabilities and gradients."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def most_logits(task: Any, prepared: Any) -> int:
    """Bytes of them at once, on the way there and back of the first micro-batch."""
    batch = task.micro_batches(1)[0]
    with Logits(prepared.model) as seen:
        with prepared.computing():
            total = task.loss(prepared.model, batch).total
        total.backward()
    return seen.most


class Logits(TorchDispatchMode):  # type: ignore[misc, no-untyped-call, unused-ignore]  # torch may be untyped
    """Watches storages of tensors whose last dimension is the vocabulary, from the operator that makes them until
    nobody holds them; none of the `model`'s own. `most`: bytes of them at once."""

    def __init__(self, model: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]  # torch may be untyped
        self.most = 0
        self._vocabulary = model.get_output_embeddings().weight.shape[0]
        self._own = {one.untyped_storage()._cdata for one in model.parameters()}
        self._live: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            if isinstance(each, torch.Tensor) and each.shape[-1:] == (self._vocabulary,):
                self._see(each.untyped_storage())
        return out

    def _see(self, storage: Any) -> None:
        key = storage._cdata
        if key not in self._live and key not in self._own:
            self._live[key] = storage.nbytes()
            weakref.finalize(storage, self._live.pop, key, None)
            self.most = max(self.most, sum(self._live.values()))
