"""The weights that the best evaluation saw, kept in the host's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from allpass.training.torch_state import load_weights, trainable_weights


class Best:
    """A copy of the weights that are trained. With a full fine-tuning that is the whole model once more."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._weights: dict[str, Any] = {}

    def keep(self) -> None:
        """What the model has now is the best there is."""
        with torch.no_grad():
            self._weights = {
                name: value.detach().to("cpu", copy=True) for name, value in trainable_weights(self._model).items()
            }

    def put_back(self) -> None:
        """Give the model what was kept, if anything was."""
        if self._weights:
            load_weights(self._model, self._weights)

    def state(self) -> dict[str, Any]:
        return dict(self._weights)

    def restore(self, state: Mapping[str, Any]) -> None:
        self._weights = dict(state)
