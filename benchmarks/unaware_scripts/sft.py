"""TRL's SFTTrainer with a LoRA, over conversations that it makes tokens of itself."""

import hashlib
import time
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback, set_seed
from trl import SFTConfig, SFTTrainer

WORDS = ["<pad>", "<eos>", "<unk>", *(f"w{number}" for number in range(61))]


class Slow(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        time.sleep(0.15)  # a model that is larger than this one


if __name__ == "__main__":
    torch.set_num_threads(1)
    set_seed(3)
    plain = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    texts = [" ".join(f"w{(7 * row + word) % 61}" for word in range(12)) for row in range(40)]
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    trainer = SFTTrainer(
        model=LlamaForCausalLM(config),
        args=SFTConfig(
            output_dir="sft",
            max_steps=120,
            per_device_train_batch_size=2,
            learning_rate=5e-3,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
            max_length=16,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_dict({"text": texts}),
        processing_class=tokenizer,
        peft_config=LoraConfig(task_type="CAUSAL_LM", r=4, lora_dropout=0.1, target_modules="all-linear"),
        callbacks=[Slow()],
    )
    trainer.train()
    trainer.save_model("final")
    print("result", hashlib.sha256(Path("final", "adapter_model.safetensors").read_bytes()).hexdigest(), flush=True)
