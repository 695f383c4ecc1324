"""What the first process of a training hands to the others before they take steps with it: all that a step depends on.

They have loaded the same model and rows; of what training has changed since, one that has just begun has nothing, and
one that was interrupted in a step may have one step more or less than the first process. After it all hold the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from allpass.training.elastic.ranks import RankFailed, Ranks
from allpass.training.torch_state import trainable_weights
from allpass.training.tree import decode, encode


def share(
    ranks: Ranks, step: int, data: Mapping[str, Any], model: Any, parts: Mapping[str, Any]
) -> tuple[int, Mapping[str, Any]]:
    """The first process's step and `data`, in all; the model's trained weights and the state of `parts` (optimizer,
    scheduler, scaler; None where there is none) are its as well. To be called by all. Raises PeerLost, with some of it
    handed over, and RankFailed."""
    weights = trainable_weights(model)
    tensors: dict[str, Any] = {}
    told = None
    if ranks.is_first:
        states = {name: part.state_dict() for name, part in parts.items() if part is not None}
        skeleton = encode({"data": dict(data), "states": states}, tensors)
        told = (step, skeleton, _shapes(tensors), list(weights))
    step, skeleton, shapes, names = ranks.of_first(told)
    if names != list(weights):
        raise RankFailed(f"the processes do not train the same weights: {len(names)} and {len(weights)}")
    for one in weights.values():  # where they are: a second copy of a whole model might find no room
        ranks.fill(one.detach())
    if not ranks.is_first:
        parts["optimizer"].state.clear()  # for the same reason
        tensors = {name: _empty(shape, weights) for name, shape in shapes.items()}
    for name in shapes:
        ranks.fill(tensors[name])
    if ranks.is_first:
        return step, data
    state = decode(skeleton, tensors)
    for name, saved in state["states"].items():
        parts[name].load_state_dict(saved)
    return step, state["data"]


def _shapes(tensors: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], torch.dtype, bool]]:
    """Shape, type, and whether it is on a GPU, by name."""
    return {name: (tuple(one.shape), one.dtype, one.is_cuda) for name, one in tensors.items()}


def _empty(shape: tuple[tuple[int, ...], torch.dtype, bool], weights: Mapping[str, Any]) -> Any:
    size, dtype, is_on_gpu = shape
    device = next(iter(weights.values())).device if is_on_gpu else "cpu"
    return torch.empty(size, dtype=dtype, device=device)
