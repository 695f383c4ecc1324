"""Peaks that others, or a symbolic run of the real modules, found; figures with their source.

`SYMBOLIC`: fake-tensor runs of transformers 5.23.0, peft 0.21.2 and torch 2.13.0 (CPU build), two steps each.
`MEASURED`: `torch.cuda.max_memory_allocated()` of real runs. fitcheck-llm 0.3.1 archive (MIT; Tesla T4, torch 2.10 and
2.14, transformers 5) and the A100 references of fms-acceleration (Apache-2.0, commit 876e2ed6fc4e, packed sequences).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, get_type_hints


class Figure(NamedTuple):
    """One run; `static_bytes` are the weights before the first step."""

    model: str
    method: str
    precision: str
    batch: int
    sequence: int
    optimizer: str
    checkpointing: bool
    attention: str
    rank: int
    targets: str
    autocast: bool
    quantisation: str
    static_bytes: int
    peak_bytes: int


class Lit(NamedTuple):
    """One symbolic run of litgpt's own modules."""

    model: str
    method: str
    batch: int
    sequence: int
    rank: int
    targets: str
    dropout: float
    even: bool
    peak_bytes: int


class Measured(NamedTuple):
    """One run of LoRA or full training on real GPUs; `qkvo` are the four projections of attention."""

    profile: str
    model: str
    method: str
    precision: str
    autocast: bool
    batch: int
    sequence: int
    attention: str
    loss: str
    rank: int
    targets: str
    quantisation: str
    gpus: int
    peak_bytes: int


_SYMBOLIC = """
gpt2 full bf16 8 512 adamw_fused False flash 0 all False none 248879616 5836659200
gpt2 full amp_bf16 8 512 adamw_fused False flash 0 all False none 497759232 7894027776
gpt2 full fp32 4 1024 adamw_foreach False flash 0 all False none 497759232 9121929216
gpt2 full amp_bf16 16 1024 adamw_fused True flash 0 all False none 497759232 13790760448
gpt2 full bf16 8 512 adamw_fused False eager 0 all False none 248879616 7344237056
bert-base full amp_bf16 32 128 adamw_fused False flash 0 all False none 437943808 3144976896
bert-base full fp32 16 384 adamw_foreach False flash 0 all False none 437943808 5180889600
distilbert full amp_bf16 32 256 adamw_fused False flash 0 all False none 267824640 2584221696
distilbert full fp32 64 128 sgd False flash 0 all False none 267824640 2887522304
tinyllama-1.1b full bf16 4 1024 adamw_fused True flash 0 all False none 2200097792 9349783040
tinyllama-1.1b full amp_bf16 2 2048 adamw_fused True flash 0 all False none 4400194560 18103770624
tinyllama-1.1b qlora bf16 8 512 adamw_fused True flash 16 all True nf4_dq 1074971648 3914235904
tinyllama-1.1b full bf16 4 512 adamw_8bit False flash 0 all False none 2200097792 9314177024
llama-3.2-1b lora bf16 4 2048 adamw_fused True flash 16 all False none 2516718592 17921120256
qwen2.5-0.5b full bf16 4 1024 adamw_8bit True flash 0 all False none 988097536 10910570496
qwen3-0.6b full bf16 2 777 adamw_fused False flash 0 all False none 1192115200 10021521408
qwen3-0.6b lora bf16 4 2048 adamw_fused True flash 64 all False none 1353595904 19606540288
gemma-2-2b full bf16 1 1024 adamw_fused True eager 0 all False none 5228685312 23798485504
gemma-2-2b lora bf16 2 1024 adamw_fused True eager 16 all False none 5311752192 14140418048
gemma-2-2b qlora bf16 4 512 adamw_fused True eager 16 all True nf4_dq 3487671808 13741348352
mistral-7b lora bf16 4 2048 adamw_fused True flash 64 all False none 15154553856 22471961600
mistral-7b qlora bf16 2 1024 adamw_fused True flash 16 all True nf4_dq 4817830912 7441647616
llama-2-7b full bf16 2 2048 adamw_8bit True flash 0 all False none 13476832256 41339056128
llama-2-7b qlora bf16 4 1024 adamw_fused True flash 64 all True nf4_dq 5030069248 10622445568
llama-3-8b lora bf16 1 1024 adamw_fused False flash 16 all True none 16228295680 25612150784
llama-3-8b qlora bf16 1 2048 adamw_fused False flash 16 all True nf4_dq 7971947520 33009223680
llama-3-8b qlora bf16 2 4096 adamw_fused True flash 16 all True nf4_dq 7971947520 28501395456
phi-3-mini lora bf16 2 1024 adamw_fused False flash 16 all False none 7742823424 20700930048
phi-3-mini full bf16 1 2048 adamw_fused True flash 0 all False none 7642160128 30743249408
"""

_MEASURED = """
transformers-5-held-output smollm2-135m lora fp16 False 2 512 efficient full 32 qkvo none 1 1076803072
transformers-5-held-output smollm2-1.7b lora fp16 False 4 1024 eager full 32 qkvo none 1 6854277120
transformers-5-held-output tinyllama-1.1b lora fp16 False 2 2048 eager full 32 qkvo none 1 6937499648
transformers-5-held-output qwen2.5-1.5b lora fp16 False 2 1024 efficient full 32 qkvo none 1 7761359872
transformers-5-held-output qwen2.5-1.5b lora fp16 False 1 2048 eager full 32 qkvo none 1 7770280960
transformers-5-held-output tinyllama-1.1b lora fp16 False 2 512 efficient full 32 qkvo none 1 2890078208
transformers-5-held-output smollm2-135m qlora fp16 False 2 512 efficient full 32 qkvo nf4 1 1115489792
transformers-5-held-output smollm2-135m qlora fp16 False 2 512 eager full 32 qkvo nf4 1 1119028736
transformers-5-held-output qwen2.5-1.5b qlora fp16 False 1 1024 eager full 16 qkvo nf4 1 4441536512
transformers-5-held-output tinyllama-1.1b qlora fp16 False 1 1024 efficient full 32 qkvo nf4 1 1932602368
transformers-5-held-output smollm2-1.7b qlora fp16 False 1 2048 eager full 32 qkvo nf4 1 4533000192
transformers-5-held-output qwen2.5-1.5b qlora fp16 False 2 1024 efficient full 32 qkvo nf4 1 7159326720
fused-kernels-4 llama-3-8b full bf16 True 4 4096 flash fused 0 all none 1 80318097408
fused-kernels-4 mistral-7b full bf16 True 4 4096 flash full 0 all none 1 72432723456
fused-kernels-4 mistral-7b full bf16 True 8 4096 flash full 0 all none 4 39783938560
fused-kernels-4 mistral-7b full bf16 True 4 4096 flash fused 0 all none 2 72434853888
fused-kernels-4 llama-3-8b full bf16 True 4 4096 flash fused 0 all none 2 80320219648
transformers-4 mistral-7b full bf16 False 4 4096 flash full 0 all none 2 36226136576
fused-kernels-4 llama-3-8b full bf16 True 4 4096 flash full 0 all none 2 80320219648
fused-kernels-4 llama-3-8b lora bf16 True 8 4096 flash full 16 qkvo none 1 59017447424
fused-kernels-4 mistral-7b lora bf16 True 4 4096 flash fused 16 qkvo none 1 23530188288
fused-kernels-4 mistral-7b lora bf16 True 16 4096 flash fused 16 qkvo none 2 59888279552
fused-kernels-4 mistral-7b lora bf16 True 16 4096 flash fused 16 qkvo none 4 56213309440
fused-kernels-4 mistral-7b lora bf16 True 8 4096 flash full 16 qkvo none 4 30434068480
fused-kernels-4 mistral-7b lora bf16 True 8 4096 flash full 16 qkvo none 2 34109038592
transformers-4 mistral-7b lora bf16 False 4 4096 flash full 16 qkvo none 1 26704571904
transformers-4 mistral-7b lora bf16 False 4 4096 flash full 16 qkvo none 2 21959827968
fused-kernels-4 mistral-7b qlora bf16 True 4 4096 flash full 16 qkvo nf4 1 13064809472
fused-kernels-4 mistral-7b qlora bf16 True 4 4096 flash fused 16 qkvo nf4 4 14682360832
fused-kernels-4 mistral-7b qlora bf16 True 16 4096 flash full 16 qkvo nf4 2 53945902080
fused-kernels-4 mistral-7b qlora bf16 True 16 4096 flash full 16 qkvo nf4 4 52942277632
fused-kernels-4 llama-3-8b qlora bf16 True 8 4096 flash fused 16 qkvo nf4 1 22936744960
fused-kernels-4 mistral-7b qlora bf16 True 32 4096 flash fused 16 qkvo nf4 1 74122441216
transformers-4-bnb mistral-7b qlora bf16 True 4 4096 flash full 16 qkvo nf4 1 16373838336
transformers-4-bnb-upcast mistral-7b qlora bf16 True 4 4096 flash full 16 qkvo nf4 2 15970067968
transformers-4-bnb llama-2-70b qlora bf16 True 4 4096 flash full 16 qkvo nf4 1 68126381056
transformers-4-bnb-upcast mixtral-8x7b qlora bf16 True 8 4096 flash full 16 qkvo nf4 1 60545920512
transformers-4-bnb mixtral-8x7b qlora bf16 True 4 4096 flash full 16 qkvo nf4 1 36731843072
transformers-4-bnb-upcast mistral-7b qlora bf16 True 4 4096 flash full 16 qkvo nf4 1 20669338112
"""


def _rows(text: str, kind: Any) -> tuple[Any, ...]:
    read: dict[type, Callable[[str], Any]] = {int: int, str: str, bool: "True".__eq__}
    types = [read[each] for each in get_type_hints(kind).values()]
    lines = [line.split() for line in text.strip().splitlines()]
    return tuple(kind(*(make(cell) for make, cell in zip(types, cells, strict=True))) for cells in lines)


SYMBOLIC: tuple[Figure, ...] = _rows(_SYMBOLIC, Figure)
MEASURED: tuple[Measured, ...] = _rows(_MEASURED, Measured)

LITGPT = (
    Lit("llama-3.2-1b", "lora", 1, 512, 32, "attention", 0.05, False, 4_178_000_000),
    Lit("llama-2-7b", "lora", 1, 1304, 8, "attention", 0.05, False, 21_067_000_000),
    Lit("mistral-7b", "lora", 2, 512, 32, "attention", 0.05, False, 20_462_000_000),
    Lit("llama-2-7b", "qlora", 1, 1304, 8, "attention", 0.05, False, 14_022_000_000),
    Lit("llama-3.2-1b", "qlora", 2, 512, 32, "attention", 0.05, False, 4_884_000_000),
    Lit("llama-3.2-1b", "qlora", 2, 512, 32, "attention", 0.05, True, 5_288_000_000),
    Lit("llama-2-7b", "qlora", 1, 1304, 8, "attention", 0.05, True, 15_964_000_000),
    Lit("phi-3-mini", "qlora", 4, 512, 8, "all", 0.05, False, 16_241_000_000),
    Lit("tinyllama-1.1b", "qlora", 8, 512, 32, "all", 0.05, False, 13_586_000_000),
)
"""Fake-tensor runs of litgpt 0.5.13 (torch 2.13.0, bf16, AdamW, chunks of 128): its `GPT`, `LoRA` and loss, nf4 weights
with bitsandbytes 0.43's way of saving. `even`: while the loss of an equal batch before is held."""
