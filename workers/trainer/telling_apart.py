"""Whether a model can tell apart rows that are joined into one line: asked of the model itself, as no list of
architectures stays true, and a model that mixes rows up learns something else without a word."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from workers.trainer.model import Prepared

_LENGTHS = (9, 7)
_MOST_OFF = {torch.float32: 1e-3}  # of what the answer would be off if rows were mixed up
_MOST_OFF_NARROW = 0.2  # 16 bits round by themselves


def tells_apart(prepared: Prepared) -> bool:
    """Whether two joined rows give what they give alone. Nothing random is used, and the model is left as it was."""
    model = prepared.model
    if not takes(prepared, "position_ids"):
        return False
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), prepared.computing():
            alone, joined, mixed = _answers(model, prepared.device)
    except (TypeError, ValueError, AttributeError, RuntimeError):  # of a forward that takes positions, but not these
        return False
    finally:
        model.train(was_training)
    could_be, off = (float((one - alone).abs().mean()) for one in (mixed, joined))
    return could_be > 0 and off <= _MOST_OFF.get(_computed_in(prepared), _MOST_OFF_NARROW) * could_be


def takes(prepared: Prepared, name: str) -> bool:
    """Whether the Transformers model, which may be below PEFT's, has a word of that name in its forward."""
    model = prepared.model
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return name in inspect.signature(inner.forward).parameters


def _answers(model: Any, device: Any) -> tuple[Any, Any, Any]:
    """Logits of two rows: each alone, joined, and as if both were one."""
    first, second = _LENGTHS
    words = model.get_input_embeddings().num_embeddings
    ids = (torch.arange(first + second, device=device) * 37 + 11).remainder(words).unsqueeze(0)
    positions = torch.cat([torch.arange(first), torch.arange(second)]).to(device).unsqueeze(0)
    alone = torch.cat([model(input_ids=row, use_cache=False).logits for row in (ids[:, :first], ids[:, first:])], dim=1)
    joined = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    mixed = model(input_ids=ids, use_cache=False).logits
    return alone.float(), joined.float(), mixed.float()


def _computed_in(prepared: Prepared) -> Any:
    return prepared.autocast or next(prepared.model.parameters()).dtype
