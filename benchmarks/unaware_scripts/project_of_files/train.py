"""The entry of a project of several files: it reads arguments, its data has workers, it keeps checkpoints."""

import argparse
import hashlib
import time
from pathlib import Path

import torch
from rows import Rows
from settings import arguments
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

parser = argparse.ArgumentParser()
parser.add_argument("--save-steps", type=int, default=40)
parser.add_argument("--seed", type=int, default=3)


def main(given):
    torch.set_num_threads(1)
    set_seed(given.seed)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    )
    settings = TrainingArguments(**arguments(), save_strategy="steps", save_steps=given.save_steps, save_total_limit=1)
    trainer = Trainer(model=model, args=settings, train_dataset=Rows(64), eval_dataset=Rows(8))
    trainer.train()
    trainer.save_model("final")
    Path("notes.txt").write_text(f"done at {time.ctime()}\n")
    print("result", hashlib.sha256(Path("final", "model.safetensors").read_bytes()).hexdigest(), flush=True)


if __name__ == "__main__":
    main(parser.parse_args())
