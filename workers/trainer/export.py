"""What a training leaves: the adapter in PEFT's own format or the whole model, the tokenizer, and a summary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allpass.recipe.settings import Recipe
from workers.trainer.base import weights_dtype
from workers.trainer.model import Prepared, free_memory

SUMMARY_NAME = "training.json"
MERGED = "merged"  # the folder of the whole model, where the adapter is left too
LARGEST_SHARD = "4GB"  # a store takes files of up to 5 GiB


def write(
    folder: Path,
    recipe: Recipe,
    prepared: Prepared,
    summary: Mapping[str, Any],
    weights: Mapping[str, Any] | None = None,
) -> None:
    """Fill `folder`. The same model gives the same bytes in every process. `weights`: of one of which this process has
    shares alone."""
    (folder / SUMMARY_NAME).write_text(json.dumps(summary, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    _save(folder, prepared, weights)
    if recipe.export == "adapter":
        return
    place = folder / MERGED
    print("training: merges the adapter into the base weights", flush=True)
    _merge(recipe, folder, place)
    prepared.tokenizer.save_pretrained(place)
    if recipe.export == "merged":
        _put_in_place_of_the_adapter(folder, place)


def _save(folder: Path, prepared: Prepared, weights: Mapping[str, Any] | None) -> None:
    model = prepared.model
    for config in getattr(model, "peft_config", {}).values():
        for name in ("target_modules", "modules_to_save"):
            names = getattr(config, name, None)
            if isinstance(names, (set, list)):  # PEFT would write a set in the order that this process has it in
                setattr(config, name, sorted(names))
    if hasattr(model, "peft_config"):
        model.save_pretrained(folder)
    else:
        model.save_pretrained(folder, max_shard_size=LARGEST_SHARD, state_dict=weights)
    prepared.tokenizer.save_pretrained(folder)


def _merge(recipe: Recipe, adapter: Path, place: Path) -> None:
    """The base weights are read once more, onto the processor: those that were trained on may be in 4 bits, and what is
    added to rounded weights would be another model."""
    from peft import AutoPeftModelForCausalLM, AutoPeftModelForSequenceClassification

    kind = AutoPeftModelForCausalLM if recipe.is_causal else AutoPeftModelForSequenceClassification
    options: dict[str, Any] = {}
    if recipe.task == "classification":
        labels = json.loads((adapter / SUMMARY_NAME).read_text(encoding="utf-8"))["labels"]
        options = {"num_labels": len(labels), "ignore_mismatched_sizes": True}
    free_memory()
    adapted = kind.from_pretrained(adapter, dtype=weights_dtype(recipe), device_map={"": "cpu"}, **options)
    whole = adapted.merge_and_unload(safe_merge=True)
    if recipe.task == "classification":
        whole.config.id2label = dict(enumerate(labels))
        whole.config.label2id = {label: number for number, label in enumerate(labels)}
    whole.save_pretrained(place, max_shard_size=LARGEST_SHARD)


def _put_in_place_of_the_adapter(folder: Path, place: Path) -> None:
    for path in list(folder.iterdir()):
        if path.name.startswith("adapter_"):
            path.unlink()
    (folder / "README.md").unlink(missing_ok=True)  # PEFT's card of the adapter
    for path in list(place.iterdir()):
        path.replace(folder / path.name)
    place.rmdir()
