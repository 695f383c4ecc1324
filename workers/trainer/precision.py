"""The 16-bit numbers that a job which was given no precision computes in: those that the GPU it begins on has.

Cards from before Ampere (T4, V100) compute bf16 by way of float32, several times slower than fp16. What a job began in
it goes on in, whatever its next machine is: another precision would be another training.
"""

from __future__ import annotations

import json
from dataclasses import replace

import torch

from allpass.recipe.settings import Recipe
from allpass.training.session import Session
from allpass.training.torch_state import STATE_NAME


def settled(recipe: Recipe, session: Session) -> Recipe:
    """The recipe with the precision of this job, in words where it is not what it says by itself."""
    if not recipe.follows_the_card:
        return recipe
    begun = _begun_in(session)
    numbers = begun or ("bf16" if has_bf16() else "fp16")
    if begun == "bf16" and not has_bf16():
        print("training: goes on in bf16, which it began in and this GPU computes slowly", flush=True)
    if begun is None and numbers == "fp16":
        print("training: in fp16, as this GPU has no bf16 of its own", flush=True)
    return recipe if numbers == recipe.numbers else replace(recipe, precision=numbers)


def has_bf16() -> bool:
    """Whether bf16 is computed as such. A processor has no other 16 bits that are any faster."""
    return not torch.cuda.is_available() or torch.cuda.is_bf16_supported(including_emulation=False)


def _begun_in(session: Session) -> str | None:
    """What the checkpoint of this very job says; None where there is none, or it is of an older version."""
    found = session.resume()
    if found is None or found.learned:
        return None
    try:
        told = json.loads((found.path / f"{STATE_NAME}.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None  # whoever resumes says what is missing
    data = told.get("data")
    return data.get("numbers") if isinstance(data, dict) else None
