"""A script of TRL as people have it: it knows nothing of where it runs, and makes tokens of its rows by itself.

Parameters: kind ("sft", "dpo"), stop_at (it sends itself SIGTERM in that step), arguments (of the trainer's settings).
"""

import json
import os
import signal
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback, set_seed
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

WORDS = ["<pad>", "<eos>", "<unk>", *(f"w{number}" for number in range(61))]
options = {"kind": "sft", "stop_at": 0, "arguments": {}}
options.update(json.loads(Path("parameters.json").read_text()))


class Asks(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        if state.global_step + 1 == options["stop_at"]:
            os.kill(os.getpid(), signal.SIGTERM)


def words(row, count):
    return " ".join(f"w{(7 * row + word) % 61}" for word in range(count))


torch.set_num_threads(1)
set_seed(3)
plain = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
config = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
settings = {
    "output_dir": "out",
    "max_steps": 10,
    "per_device_train_batch_size": 2,
    "learning_rate": 5e-3,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
    "max_length": 16,
    "bf16": False,
    "gradient_checkpointing": False,
    **options["arguments"],
}
given = {
    "model": LlamaForCausalLM(config),
    "processing_class": tokenizer,
    "peft_config": LoraConfig(task_type="CAUSAL_LM", r=4, lora_dropout=0.1, target_modules="all-linear"),
    "callbacks": [Asks()],
}
if options["kind"] == "sft":
    rows = Dataset.from_dict({"text": [words(row, 5 + row % 9) for row in range(40)]})
    trainer = SFTTrainer(args=SFTConfig(**settings), train_dataset=rows, **given)
else:
    pairs = [{"prompt": words(row, 4), "chosen": words(row + 1, 5), "rejected": words(row + 2, 3)} for row in range(24)]
    trainer = DPOTrainer(args=DPOConfig(**settings), train_dataset=Dataset.from_list(pairs), **given)
trainer.train()
trainer.save_model("final")
losses = {line["step"]: line["loss"] for line in trainer.state.log_history if "loss" in line}
Path("losses.json").write_text(json.dumps(losses))
