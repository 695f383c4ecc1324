"""How many GPUs a fine-tuning may ask for: each has a whole copy of the model, and parts of every step."""

from __future__ import annotations

from allpass.errors import Problem
from allpass.recipe.settings import Recipe
from allpass.wire.template import GpuRequest

MOST_GPUS = 8  # of one machine


def problems_of(gpu: GpuRequest, recipe: Recipe) -> list[Problem]:
    """Why a recipe cannot be trained on these, or would leave some of them without work."""
    if gpu.max_count is not None and gpu.max_count != gpu.count:
        return [Problem("gpu.max_count", "the number of GPUs of a job does not change", f'"max_count": {gpu.count}')]
    if gpu.count > MOST_GPUS:
        what = f"the recipe trains on at most {MOST_GPUS} GPUs, of one machine"
        return [Problem("gpu.count", what, f'"count": {MOST_GPUS}')]
    if gpu.count > recipe.batch_size:
        what = f"{gpu.count} GPUs have no work with {recipe.batch_size} rows in a step"
        return [Problem("gpu.count", what, f'"count": {recipe.batch_size}, or batch_size={gpu.count}')]
    is_cut = recipe.micro_batch is not None or recipe.learns_pairs
    if is_cut and gpu.count > recipe.accumulation:
        parts = "1 part" if recipe.accumulation == 1 else f"{recipe.accumulation} parts"
        what = f"{gpu.count} GPUs have no work with {parts} in a step, of {recipe.rows_at_once} rows"
        return [Problem("gpu.count", what, f"micro_batch={recipe.batch_size // gpu.count}")]
    return []
