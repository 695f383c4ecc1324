"""The base weights of a causal model: read now, or by a process that stood by before it was known for which job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allpass.recipe.settings import Recipe

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "autocast": "float32"}
_kept: dict[tuple[str, str], tuple[Any, Any]] = {}  # by model and precision: what its files were, and the model


def load_ahead(parameters: Mapping[str, Any]) -> None:
    """Load what a job with these parameters will need. The libraries in any case; weights only from a folder of this
    machine (nothing is downloaded for a job that may never come), and none that a job adds something random to."""
    recipe = Recipe.of(parameters)
    import peft  # noqa: F401 - to have it loaded
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401 - the same

    if is_as_stored(recipe) and Path(recipe.model).is_dir():
        keep(recipe, _read(recipe))


def is_as_stored(recipe: Recipe) -> bool:
    """Whether the base model is what its files say: no head is drawn, nothing is quantized."""
    return recipe.is_causal and recipe.method != "qlora"


def keep(recipe: Recipe, model: Any) -> None:
    """Keep a base model as it was read, for the next one who asks."""
    _kept[recipe.model, recipe.numbers] = _identity(recipe.model), model


def causal_model(recipe: Recipe, device: Any) -> Any:
    """The model of a recipe without 4-bit weights. What was kept is used once, if its files are still those."""
    files, model = _kept.pop((recipe.model, recipe.numbers), (None, None))
    if model is not None and files == _identity(recipe.model):
        print("training: base weights were loaded ahead", flush=True)
        return model
    return _read(recipe, **placed(device))


def placed(device: Any) -> dict[str, Any]:
    """How `from_pretrained` puts weights straight to a GPU: the host need not have memory for all of them."""
    return {"device_map": {"": device}} if device.type == "cuda" else {}


def weights_dtype(recipe: Recipe) -> Any:
    """What base weights are held in."""
    import torch

    return getattr(torch, _DTYPES[recipe.numbers])


def _read(recipe: Recipe, **options: Any) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(recipe.model, dtype=weights_dtype(recipe), **options)


def _identity(folder: str) -> list[tuple[str, int, int]]:
    if not Path(folder).is_dir():
        return []  # of the hub, whose files do not change while a process lives
    found = [(path.name, path.stat()) for path in sorted(Path(folder).iterdir())]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in found]
