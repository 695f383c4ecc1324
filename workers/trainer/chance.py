"""What is random of a micro-batch (dropout), where it does not depend on those before it."""

from __future__ import annotations

import hashlib

import torch

from allpass.recipe.settings import Recipe


def seed_part(recipe: Recipe, step: int, number: int) -> None:
    """Before a micro-batch of a step, from 0. Trainings that began in an edition before draw from one stream."""
    if recipe.draws_by_part:
        digest = hashlib.sha256(f"allpass recipe {recipe.seed} {step} {number}".encode()).digest()
        torch.manual_seed(int.from_bytes(digest[:8], "big"))
