"""How many GPUs a fine-tuning may ask for: each has a whole copy of the model, and parts of every step."""

from __future__ import annotations

from allpass.errors import Problem
from allpass.recipe.settings import Recipe
from allpass.wire.template import GpuRequest

MOST_GPUS = 8  # of one machine


def problems_of(gpu: GpuRequest, recipe: Recipe) -> list[Problem]:
    """Why a recipe cannot be trained on these, or would leave some of them without work."""
    name = "max_count" if gpu.is_range else "count"
    most, field = max(gpu.count, gpu.max_count or 0), f"gpu.{name}"
    if most > MOST_GPUS:
        what = f"the recipe trains on at most {MOST_GPUS} GPUs, of one machine"
        return [Problem(field, what, f'"{name}": {MOST_GPUS}')]
    if most > recipe.batch_size:
        what = f"{most} GPUs have no work with {recipe.batch_size} rows in a step"
        return [Problem(field, what, f'"{name}": {recipe.batch_size}, or batch_size={most}')]
    is_cut = recipe.micro_batch is not None or recipe.learns_pairs
    if is_cut and most > recipe.accumulation:
        parts = "1 part" if recipe.accumulation == 1 else f"{recipe.accumulation} parts"
        what = f"{most} GPUs have no work with {parts} in a step, of {recipe.rows_at_once} rows"
        return [Problem(field, what, f"micro_batch={recipe.batch_size // most}")]
    return []
