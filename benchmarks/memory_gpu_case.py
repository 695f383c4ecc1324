"""One case of `benchmarks.memory_gpu`: trains three steps and tells its peaks, as one JSON object."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import torch

from app.core.memory import MODELS, Architecture, Training
from app.core.memory.calibration import Observed
from benchmarks.memory_gpu import Case

STEPS = 3
_KERNELS = {"flash": "sdpa", "efficient": "sdpa", "eager": "eager"}


def main() -> None:
    case = Case(**json.loads(sys.argv[1]))
    print(json.dumps(asdict(peaks(MODELS[case.model], case.training))))


def peaks(model: Architecture, training: Training) -> Observed:
    """On the first CUDA device; what loading took is not counted."""
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    try:
        module = built(model, training, "cuda")
        torch.cuda.reset_peak_memory_stats()
        train(module, training, model.vocab, "cuda")
    except torch.OutOfMemoryError:
        return Observed(out_of_memory_bytes=total_bytes)
    free_bytes, _ = torch.cuda.mem_get_info()
    return Observed(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), total_bytes - free_bytes)


def built(model: Architecture, training: Training, device: str) -> Any:
    """The real module with random weights, and adapters where the method has them."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        model.family,
        hidden_size=model.hidden,
        intermediate_size=model.intermediate,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim,
        vocab_size=model.vocab,
        tie_word_embeddings=model.tied,
        max_position_embeddings=max(training.sequence, 2048),
        use_cache=False,
    )
    kernel = _KERNELS[training.attention]
    module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=kernel)
    if training.method == "qlora":
        module = _packed(module)
    module.to(device)
    if training.adapts:
        module = _adapted(module, training)
    if training.checkpointing:
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if training.adapts:
            module.enable_input_require_grads()
    module.train()
    return module


def _packed(module: Any) -> Any:
    """Every matrix but the head in 4 bits with doubly quantised scales, as transformers loads it; packed on its way to
    the GPU."""
    from bitsandbytes.nn import Linear4bit, Params4bit
    from peft import prepare_model_for_kbit_training

    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not torch.nn.Linear or name == "lm_head":
                continue
            small = Linear4bit(
                child.in_features,
                child.out_features,
                bias=child.bias is not None,
                compute_dtype=torch.bfloat16,
                compress_statistics=True,
                quant_type="nf4",
            )
            small.weight = Params4bit(
                child.weight.data, requires_grad=False, compress_statistics=True, quant_type="nf4", module=small
            )
            setattr(parent, name, small)
    module.is_loaded_in_4bit = True
    return prepare_model_for_kbit_training(module, use_gradient_checkpointing=False)


def _adapted(module: Any, training: Training) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=training.rank,
        lora_alpha=2 * training.rank,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(module, config)


def train(module: Any, training: Training, vocab: int, device: str) -> None:
    """Three steps of the causal loss; the first makes the optimizer's states."""
    optimizer = torch.optim.AdamW([each for each in module.parameters() if each.requires_grad], foreach=True)
    for _ in range(STEPS):
        ids = torch.randint(0, vocab, (training.batch, training.sequence), device=device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=training.autocast):
            loss = module(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
