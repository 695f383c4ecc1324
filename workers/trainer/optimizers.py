"""AdamW, with its two states in float32, or in 8 bits by bitsandbytes."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from allpass.recipe.settings import Recipe


def check_optimizer(recipe: Recipe, device: Any) -> None:
    """Raises ValueError where this machine has not got the recipe's optimizer: before weights are fetched."""
    if not recipe.has_narrow_states:
        return
    missing = "GPU that CUDA knows" if device.type != "cuda" else "bitsandbytes installed"
    if device.type != "cuda" or importlib.util.find_spec("bitsandbytes") is None:
        raise ValueError(
            f"optimizer: {recipe.optimizer!r} keeps its states in 8 bits, and this machine has no {missing}; "
            "take 'adamw'"
        )


def optimizer_of(recipe: Recipe, groups: Sequence[Mapping[str, Any]]) -> Any:
    """The recipe's optimizer of these groups of parameters."""
    if not recipe.has_narrow_states:
        return torch.optim.AdamW([dict(group) for group in groups], lr=recipe.rate)
    kinds = {"adamw_8bit": "AdamW8bit", "paged_adamw_8bit": "PagedAdamW8bit"}
    library = importlib.import_module("bitsandbytes")
    return getattr(library.optim, kinds[recipe.optimizer])([dict(group) for group in groups], lr=recipe.rate)
