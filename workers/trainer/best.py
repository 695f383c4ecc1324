"""The weights that the best evaluation saw, kept in the host's memory, or on its disk where they are many."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from allpass.training.snapshots import size_of
from allpass.training.spread_state import own_weights
from allpass.training.torch_state import load_weights, trainable_weights
from allpass.training.tree import Shard, is_spread
from workers.trainer.on_disk import on_disk

IN_MEMORY_BYTES = 1 << 30


class BestWeights:
    """A copy of the weights that are trained, or of this process's share of each. With a full fine-tuning that is
    the model once more: then it lies in `folder`, in a file that nobody sees."""

    def __init__(self, model: Any, folder: Path) -> None:
        self._model = model
        self._folder = folder
        self._weights: dict[str, Any] = {}

    def keep(self) -> None:
        """What the model has now is the best there is."""
        weights = trainable_weights(self._model)
        own = {name: value.to_local() if is_spread(value) else value for name, value in weights.items()}
        with torch.no_grad():
            if size_of(own) <= IN_MEMORY_BYTES or not self._keep_on_disk(own):
                self._weights = {name: value.detach().to("cpu", copy=True) for name, value in own.items()}
        for name, value in weights.items():
            if is_spread(value):
                self._weights[name] = Shard(self._weights[name])

    def _keep_on_disk(self, weights: Mapping[str, Any]) -> bool:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._weights = on_disk(weights, self._folder)
        except OSError as error:
            print(f"training: the best weights are kept in memory: {error}", flush=True)
            return False
        return True

    def put_back(self) -> None:
        """Give the model what was kept, if anything was."""
        if self._weights:
            load_weights(self._model, self._weights)

    def state(self) -> dict[str, Any]:
        return dict(self._weights)

    def restore(self, state: Mapping[str, Any]) -> None:
        self._weights = own_weights(self._model, state)
