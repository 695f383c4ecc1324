"""Adapters on a base model: kept in float32, and computed as their base is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from allpass.recipe.settings import ALL_LINEAR, Recipe


class Narrow(torch.nn.Linear):
    """A matrix that is kept wider than it is computed. Steps of 16-bit weights would be rounded away, while their
    products lose nothing that the base's own do not lose; of the input no wide copy is kept for the way back."""

    def forward(self, input: Any) -> Any:
        return functional.linear(input, self.weight.to(input.dtype))


def with_adapters(recipe: Recipe, model: Any, sent: Path | None) -> Any:
    """The PEFT model of a recipe, with new adapters or the recipe's own, which is in the folder `sent` where it was
    sent along. Raises ValueError where they do not fit the model."""
    if recipe.method == "qlora":
        model = _frozen(recipe, model)
    adapted = _new(recipe, model) if recipe.adapter is None else _adapter_of(recipe.adapter, sent, model)
    for parameter in adapted.parameters():
        if parameter.requires_grad:  # a classifier's head comes in the base's precision, too coarse for small steps
            parameter.data = parameter.data.float()
    if recipe.has_narrow_adapters:
        _narrow(adapted)
    return adapted


def _new(recipe: Recipe, model: Any) -> Any:
    from peft import LoraConfig, TaskType, get_peft_model

    targets = recipe.lora_targets
    return get_peft_model(
        model,
        LoraConfig(
            task_type=TaskType.SEQ_CLS if recipe.task == "classification" else TaskType.CAUSAL_LM,
            r=recipe.lora_rank,
            lora_alpha=recipe.lora_alpha or 2 * recipe.lora_rank,
            lora_dropout=recipe.lora_dropout,
            target_modules=targets if targets == ALL_LINEAR else list(targets),
            use_rslora=recipe.use_rslora,
            use_dora=recipe.use_dora,
        ),
    )


def _adapter_of(name: str, sent: Path | None, model: Any) -> Any:
    """The model with an adapter that was trained before, to be trained on."""
    from peft import PeftModel

    try:
        return PeftModel.from_pretrained(model, name if sent is None else sent, is_trainable=True)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"adapter: {name!r} does not fit the model: {str(error).splitlines()[0][:300]}") from error


def _frozen(recipe: Recipe, model: Any) -> Any:
    """A base in 4 bits, of which nothing is trained. PEFT makes float32 of all that is not in 4 bits: of an 8B model's
    embedding and head that is 4 GiB for nothing, as they are read in 16 bits everywhere else. Jobs that began with
    that keep it."""
    if not recipe.has_narrow_adapters:
        from peft import prepare_model_for_kbit_training

        return prepare_model_for_kbit_training(model, use_gradient_checkpointing=recipe.checkpointing)
    return model.requires_grad_(False)


def _narrow(adapted: Any) -> None:
    """Let each adapter of plain matrices take its input as it comes."""
    for layer in adapted.modules():
        matrices: list[Any] = [getattr(layer, name, None) for name in ("lora_A", "lora_B")]
        is_plain = all(isinstance(each, torch.nn.ModuleDict) and _is_plain(each) for each in matrices)
        if is_plain and not getattr(layer, "lora_variant", None):  # such as DoRA's, which computes with them itself
            layer.cast_input_dtype_enabled = False
            for each in matrices:
                each.update({name: _of(matrix) for name, matrix in each.items()})


def _is_plain(matrices: Any) -> bool:
    return len(matrices) > 0 and all(type(one) is torch.nn.Linear and one.bias is None for one in matrices.values())


def _of(matrix: Any) -> Narrow:
    narrow = Narrow(matrix.in_features, matrix.out_features, bias=False, device="meta")
    narrow.weight = matrix.weight
    return narrow
