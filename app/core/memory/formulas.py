"""Other people's estimates of the same number, by name, for comparison."""

from __future__ import annotations

from app.core.memory.architecture import Architecture
from app.core.memory.parameters import parameters_of
from app.core.memory.training import Training


def frenzy_parameters(model: Architecture) -> int:
    """Parameters as Frenzy counts them (GPT-2): `V h + l (12 h^2 + 13 h)`."""
    h = model.hidden
    return model.vocab * h + model.layers * (12 * h * h + 13 * h)


def frenzy_bytes(model: Architecture, training: Training) -> int:
    """Frenzy's peak for one GPU: model states of 20 bytes a parameter, and activations of `s b h l (10 + 24 / t +
    5 a s / (h t))` bytes, both spread over `t` tensor-parallel GPUs as the paper spreads them.

    It holds for GPT-2 in mixed precision, without checkpointing, adapters or quantisation, and knows no logits.
    """
    t = training.tensor_parallel
    s, b, h = training.sequence, training.batch, model.hidden
    states = 20 * frenzy_parameters(model) / t
    activations = s * b * h * model.layers * (10 + 24 / t + 5 * model.heads * s / (h * t))
    return round(states + activations)


def accelerate_bytes(model: Architecture, training: Training) -> int:
    """What `accelerate estimate-memory` (1.15) calls training with Adam: 16 bytes a parameter in float32, 8 in half
    precision; no activations, no batch, no sequence, no method but full."""
    half = training.weight_item == 2 or training.casts
    return parameters_of(model).total * (8 if half else 16)
