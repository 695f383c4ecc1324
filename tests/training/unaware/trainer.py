"""A Trainer script as people have it: it knows nothing of where it runs. What it is to do is in parameters.json.

Parameters: model ("lora" or "full"), steps, arguments (of TrainingArguments), collator ("plain", "random"), packed,
stop_at (it sends itself SIGTERM in the middle of that step: a machine that is taken away), resume (for `train()`),
keeps ("weights": no optimizer in its checkpoints), patience (it ends early), times (it trains so often), step_ms.
"""

import errno
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    EarlyStoppingCallback,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

options = {"model": "lora", "arguments": {}, "collator": "plain", "packed": False, "stop_at": 0, "resume": None}
options.update(json.loads(Path("parameters.json").read_text()))
SEQUENCE = 16


class Rows(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        chance = random.Random(seed)
        texts = [[chance.randrange(1, 60) for _ in range(chance.randrange(4, SEQUENCE))] for _ in range(count)]
        if options["packed"]:
            flat = [token for text in texts for token in text]
            texts = [flat[start : start + SEQUENCE] for start in range(0, len(flat) - SEQUENCE, SEQUENCE)]
        self.texts = texts

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return {"input_ids": self.texts[index]}


def collate(rows):
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows])
    labels = ids.masked_fill(ids == 0, -100)
    if options["collator"] == "random":
        ids = ids.masked_fill(torch.rand(ids.shape) < 0.2, 61)
    return {"input_ids": ids, "attention_mask": (labels != -100).long(), "labels": labels}


class KeepsWeights(Trainer):
    """As trainers of some models have it."""

    def _save_checkpoint(self, *args, **kwargs):
        self.save_model(f"{self._get_output_dir(trial=None)}/checkpoint-{self.state.global_step}")


class TakenAway(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        time.sleep(options.get("step_ms", 0) / 1000)
        rank = int(os.environ.get("RANK", "0"))
        if state.global_step + 1 == options["stop_at"] and rank == options.get("stop_rank", rank):
            os.kill(os.getpid(), signal.SIGTERM)


def break_things():
    """What the tests of faults do to the machine."""
    if options.get("breaks"):
        from allpass.hooks.told import Told
        from allpass.hooks.watching import Watch

        def broken(*_, **__):
            raise RuntimeError("broken on purpose")

        part = Watch if hasattr(Watch, options["breaks"]) else Told
        assert hasattr(part, options["breaks"])
        setattr(part, options["breaks"], broken)
    if options.get("full_at"):
        save = torch.save

        def save_if_there_is_room(*args, **kwargs):
            if len(list(Path("checkpoints").glob("step-*"))) >= options["full_at"]:
                raise OSError(errno.ENOSPC, "No space left on device")
            save(*args, **kwargs)

        torch.save = save_if_there_is_room


def main():
    break_things()
    torch.set_num_threads(1)
    set_seed(3)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            attention_dropout=0.1,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    if options["model"] == "lora":
        model = get_peft_model(
            model, LoraConfig(task_type="CAUSAL_LM", r=4, lora_dropout=0.1, target_modules="all-linear")
        )
    given = {
        "output_dir": "out",
        "max_steps": options["steps"],
        "per_device_train_batch_size": 2,
        "learning_rate": 5e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        **options["arguments"],
    }
    callbacks = [TakenAway()]
    if options.get("patience"):
        callbacks.append(EarlyStoppingCallback(early_stopping_patience=options["patience"]))
    trainer = (KeepsWeights if options.get("keeps") == "weights" else Trainer)(
        model=model,
        args=TrainingArguments(**given),
        train_dataset=Rows(14, seed=1),
        eval_dataset=Rows(4, seed=2),
        data_collator=collate,
        callbacks=callbacks,
    )
    for _ in range(options.get("times", 1)):
        result = trainer.train(
            **({"resume_from_checkpoint": options["resume"]} if options["resume"] is not None else {})
        )
    if trainer.is_world_process_zero():
        trainer.save_model("final")
        Path("train_loss").write_text(str(result.training_loss))
        history = [line for line in trainer.state.log_history if "train_runtime" not in line]
        kept = [
            {name: value for name, value in line.items() if "runtime" not in name and "per_second" not in name}
            for line in history
        ]
        Path("history.json").write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
    sys.exit(0)
