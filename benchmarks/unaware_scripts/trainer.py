"""A Trainer with a LoRA, as people have it. Its last line says what it came to."""

import hashlib
import time
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

ARGUMENTS = {
    "output_dir": "out",
    "max_steps": 120,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "learning_rate": 5e-3,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
}


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 37

    def __getitem__(self, index):
        time.sleep(0.05)  # read from somewhere far away
        ids = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def train(**arguments):
    torch.set_num_threads(1)
    set_seed(3)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    lora = LoraConfig(task_type="CAUSAL_LM", r=4, lora_dropout=0.1, target_modules="all-linear")
    model = get_peft_model(LlamaForCausalLM(config), lora)
    trainer = Trainer(model=model, args=TrainingArguments(**{**ARGUMENTS, **arguments}), train_dataset=Rows())
    trainer.train()
    if trainer.is_world_process_zero():
        trainer.save_model("final")
        weights = Path("final", "adapter_model.safetensors").read_bytes()
        print("result", hashlib.sha256(weights).hexdigest(), flush=True)


if __name__ == "__main__":
    train()
