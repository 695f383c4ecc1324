"""An ordinary Hugging Face Trainer script. One line makes it movable: `callbacks=[AllpassCallback()]`.

It teaches a small, randomly initialised Llama (LoRA) the help texts of the standard library, byte by byte.

Where the template states the training, micro-batch, accumulation and checkpointing are those that Allpass planned.

Parameters: steps (60), seed (0), lr (5e-3), hidden (64), layers (2), batch (8), logging_steps (1).
"""

import importlib
import inspect
import warnings

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from allpass import training
from allpass.training.transformers import AllpassCallback

warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # peft asks by an older name
SEQUENCE = 96


class Docstrings(torch.utils.data.Dataset):
    """First paragraphs of docstrings as bytes, each cut or padded to SEQUENCE tokens."""

    def __init__(self, modules=("json", "os", "pathlib", "random", "re", "shutil", "statistics", "string", "textwrap")):
        members = [
            (name, member) for module in modules for name, member in vars(importlib.import_module(module)).items()
        ]
        self.texts = [
            f"{name}: {inspect.cleandoc(member.__doc__)}".split("\n\n")[0].encode()
            for name, member in members
            if callable(member) and member.__doc__ and not name.startswith("_")
        ]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        text = list(self.texts[index][:SEQUENCE])
        padding = SEQUENCE - len(text)
        return {
            "input_ids": torch.tensor(text + [0] * padding),
            "labels": torch.tensor(text + [-100] * padding),
        }


def main():
    options = training.parameters(steps=60, seed=0, lr=5e-3, hidden=64, layers=2, batch=8, logging_steps=1)
    plan = training.plan()  # for the GPUs that this run was given, if the template states the training
    torch.set_num_threads(1)
    set_seed(options["seed"])
    base = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=options["hidden"],
            intermediate_size=2 * options["hidden"],
            num_hidden_layers=options["layers"],
            num_attention_heads=4,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        r=16,
        lora_dropout=0.05,
        target_modules="all-linear",
        modules_to_save=["embed_tokens", "lm_head"],
    )
    trainer = Trainer(
        model=get_peft_model(base, lora),
        train_dataset=Docstrings(),
        args=TrainingArguments(
            output_dir=str(training.output_dir() / "trainer"),
            max_steps=options["steps"],
            per_device_train_batch_size=plan.micro_batch if plan else options["batch"],
            gradient_accumulation_steps=plan.accumulation if plan else 1,
            gradient_checkpointing=plan is not None and plan.checkpointing,
            learning_rate=options["lr"],
            logging_steps=options["logging_steps"],
            save_strategy="no",  # Allpass asks for checkpoints when it needs them
            report_to="none",
            seed=options["seed"],
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=False,
            disable_tqdm=True,
        ),
        callbacks=[AllpassCallback()],
    )
    trainer.train()
    trainer.model.save_pretrained(training.output_dir())


if __name__ == "__main__":
    main()
