"""How many tokens a second a job that answers for a model writes, for 1, 4 and 16 requests at once.

    .venv/bin/python -m benchmarks.serving
    .venv/bin/python -m benchmarks.serving --model Qwen/Qwen2.5-7B-Instruct       # on a machine with a GPU

The serving job's own engine, without the service around it, on the GPU where there is one. By default its model is made
on the spot, so large that a pass over its weights is what a token costs, as with models that people use. Requests have
prompts of different lengths; in `mixed` every fifth is for the base, and the others have one of four adapters. `value`
is what 16 requests at once get over what one gets alone; `serial_16` is the same 16 one after the other, as the program
did before ADR 0092.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

GOAL = 3.0
TOKENS = 24
_ADAPTERS = 4
_THREADS = 1
_ROUNDS = 3


def made_model(folder: Path) -> str:
    """About 16 million parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.training.tiny import byte_tokenizer

    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=512, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=1024, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    config.eos_token_id = config.bos_token_id = None
    LlamaForCausalLM(config).save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return str(folder)


def add_adapters(engine: Any, base: str, folder: Path) -> list[str]:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    names = [f"adapter-{number}" for number in range(_ADAPTERS)]
    config = LoraConfig(r=8, target_modules="all-linear", init_lora_weights=False)
    model: Any = AutoModelForCausalLM.from_pretrained(base)
    get_peft_model(model, config).save_pretrained(str(folder))
    for name in names:
        engine.load(name, folder)
    return names


def best_of(engine: Any, count: int, adapters: list[str | None]) -> float:
    """Of some rounds: others may use this processor, too."""
    return round(max(tokens_per_s(engine, count, adapters) for _ in range(_ROUNDS)), 1)


def tokens_per_s(engine: Any, count: int, adapters: list[str | None]) -> float:
    """Of `count` requests that begin at the same moment, to the end of the last one."""
    prompts = [f"{'what was said ' * (1 + number % 5)}{number}" for number in range(count)]
    began, written = time.perf_counter(), 0
    for number, prompt in enumerate(prompts):
        options = {"temperature": 0, "max_tokens": TOKENS}
        engine.begin(engine.encode({"prompt": prompt}), adapters[number % len(adapters)], options)
    while engine.writing:
        written += len(engine.step())
    return written / (time.perf_counter() - began)


def measure(model: str | None, folder: Path) -> dict[str, Any]:
    from workers.serving.engine import Engine

    base = made_model(folder / "base") if model is None else model
    engine = Engine(base, _THREADS)
    tokens_per_s(engine, 2, [None])  # what the first pass sets up is not measured
    plain = {count: best_of(engine, count, [None]) for count in (1, 4, 16)}
    began = time.perf_counter()
    for _ in range(16):
        tokens_per_s(engine, 1, [None])
    serial = 16 * TOKENS / (time.perf_counter() - began)
    names = add_adapters(engine, base, folder / "adapter")
    mixed = {count: best_of(engine, count, [None, *names]) for count in (1, 4, 16)}
    return {
        "name": "serving",
        "value": round(plain[16] / plain[1], 2),
        "goal": GOAL,
        "unit": "times the tokens a second of one request, for 16 at once",
        "detail": {
            "model": model or "made on the spot",
            "device": engine.device,
            "tokens_per_s": {"plain": plain, "mixed": mixed, "serial_16": round(serial, 1)},
        },
    }


def main() -> int:
    """0: as good as the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a name of the hub, or a folder; default: one that is made on the spot")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="serving-") as name:
        result = measure(asked.model, Path(name))
    print(json.dumps(result))
    return 0 if result["value"] >= GOAL else 1


if __name__ == "__main__":
    raise SystemExit(main())
