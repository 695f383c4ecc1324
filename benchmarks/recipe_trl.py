"""TRL's trainers on what the benchmark of the recipe gives them; run by the Python of TRL's own environment.

    python benchmarks/recipe_trl.py ASKED.json TOLD.json

`ASKED.json` is a list of trainings: a `model`'s folder, an `adapter` to begin with, `rows` of token ids with the mask
of what is learned, or of pairs as text, and `settings`. Of each, losses by step come back, and the bytes that the way
back keeps; of pairs also what else is told of a step, and beside the adapter the gradients of the first one.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset  # type: ignore[import-not-found, unused-ignore]
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer  # type: ignore[import-not-found, unused-ignore]


class Counting(SFTTrainer):  # type: ignore[misc]
    """Counts what is kept of the first step, each storage once and none of the model's own."""

    kept_bytes = 0

    def compute_loss(self, model: Any, inputs: Any, *more: Any, **others: Any) -> Any:
        own = {one.untyped_storage().data_ptr() for one in model.parameters()}
        kept: dict[int, Any] = {}

        def keep(one: Any) -> Any:
            kept[one.untyped_storage().data_ptr()] = one.untyped_storage()
            return one

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
            found = super().compute_loss(model, inputs, *more, **others)
        if not self.kept_bytes:
            self.kept_bytes = sum(one.nbytes() for place, one in kept.items() if place not in own)
        return found


class Preferring(DPOTrainer):  # type: ignore[misc]
    """Keeps the gradients of the first step."""

    gradients: dict[str, Any] | None = None

    def training_step(self, model: Any, *more: Any, **others: Any) -> Any:
        found = super().training_step(model, *more, **others)
        if self.gradients is None:
            trained = ((name, one.grad) for name, one in model.named_parameters() if one.grad is not None)
            self.gradients = {name: gradient.clone() for name, gradient in trained}
        return found


def train(asked: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    settings = asked["settings"]
    learns_pairs = "beta" in settings
    dtype = torch.bfloat16 if settings["bf16"] else torch.float32
    base = AutoModelForCausalLM.from_pretrained(asked["model"], dtype=dtype)
    model = PeftModel.from_pretrained(base, asked["adapter"], is_trainable=True)
    with tempfile.TemporaryDirectory() as folder:
        own = {"beta": settings["beta"]} if learns_pairs else {"completion_only_loss": True, "packing": False}
        args = (DPOConfig if learns_pairs else SFTConfig)(
            output_dir=folder, max_steps=settings["steps"], per_device_train_batch_size=len(asked["rows"]),
            learning_rate=settings["learning_rate"], lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0,
            optim="adamw_torch", logging_steps=1, save_strategy="no", report_to="none", use_cpu=True,
            disable_tqdm=True, dataloader_pin_memory=False, max_length=512, bf16=settings["bf16"],
            gradient_checkpointing=False, logging_first_step=True, **own,
        )  # fmt: skip
        trainer = (Preferring if learns_pairs else Counting)(
            model=model,
            args=args,
            train_dataset=Dataset.from_list(asked["rows"]),
            processing_class=AutoTokenizer.from_pretrained(asked["model"]),
        )
        trainer.train()
    steps = [line for line in trainer.state.log_history if "loss" in line]
    losses = [line["loss"] for line in steps]
    if not learns_pairs:
        return {"losses": losses, "kept_bytes": trainer.kept_bytes}
    save_file(trainer.gradients, f"{asked['adapter']}/gradients.safetensors")
    return {"losses": losses, "steps": steps}


if __name__ == "__main__":
    told = [train(asked) for asked in json.loads(Path(sys.argv[1]).read_text())]
    Path(sys.argv[2]).write_text(json.dumps(told))
