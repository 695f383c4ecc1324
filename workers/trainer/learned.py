"""A training that begins with what another job has learned (Ymir, section 4.3: temporal)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allpass.training.spread_state import load_spread
from allpass.training.torch_state import load_weights, trainable_weights

HEADS = ("score", "classifier")  # what Transformers calls the head of a classifier, and PEFT trains whole


def begin_with(folder: Path, model: Any, labels: tuple[str, ...]) -> None:
    """Give `model` the best weights of the job whose checkpoint lies in `folder`, or its last ones where it measured
    none. Where that job told other labels apart, the head stays as it was drawn.

    Raises ValueError when these are another model's weights.
    """
    tree = load_spread(folder)
    data: Mapping[str, Any] = tree["data"]
    found = dict(data["best"] or tree["weights"])
    if tuple(data.get("labels", ())) != labels:
        own = trainable_weights(model)
        found = {name: value for name, value in found.items() if not is_of_head(name)}
        found |= {name: value.detach().clone() for name, value in own.items() if is_of_head(name)}
    load_weights(model, found)
    print("training: begins with what another job has learned", flush=True)


def is_of_head(name: str) -> bool:
    """Whether a parameter of this name belongs to the head of a classifier."""
    return any(part in HEADS for part in name.split("."))
