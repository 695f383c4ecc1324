"""Shapes of common models by name: facts from the `config.json` that each publisher ships, no weights, no network.

Names are those of the Hugging Face hub without the publisher, in lower case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache

from app.core.memory.architecture import Architecture
from app.errors import InvalidInput


def _decoder(
    family: str,
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    *,
    tied: bool = False,
    head_dim: int | None = None,
    experts: int = 1,
    experts_per_token: int = 1,
) -> Architecture:
    return Architecture(
        family=family,
        hidden=hidden,
        intermediate=intermediate,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim or hidden // heads,
        vocab=vocab,
        tied=tied,
        experts=experts,
        experts_per_token=experts_per_token,
    )


def _gpt2(hidden: int, layers: int, heads: int) -> Architecture:
    return Architecture(
        family="gpt2",
        hidden=hidden,
        intermediate=4 * hidden,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        vocab=50257,
        tied=True,
        positions=1024,
        dropout=0.1,
        attention_dropout=0.1,
    )


def _encoder(
    family: str, hidden: int, layers: int, heads: int, vocab: int = 30522, positions: int = 512, types: int = 2
) -> Architecture:
    rate = 0.0 if family == "vit" else 0.1
    return Architecture(
        family=family,
        hidden=hidden,
        intermediate=4 * hidden,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        vocab=vocab,
        tied=True,
        positions=positions,
        types=types,
        dropout=rate,
        attention_dropout=rate,
    )


_SAME_SHAPE = frozenset({
    "instruct", "chat", "it", "pt", "hf", "uncased", "cased", "thinking", "reasoning", "beta", "dpo", "sft", "preview",
    "1m", "4k", "8k", "16k", "32k", "128k",
})  # fmt: skip
"""Words of a name that tell of data or of a length that was trained, not of a shape; nor does `base`, but for the
encoders that are named after it."""
_DATE = re.compile(r"2[0-9](0[1-9]|1[0-2])")
_QUANTISED = re.compile(r"-(unsloth-)?bnb-4bit$")
_VERSION = re.compile(r"-v[0-9]+(\.[0-9]+)*$")

MODELS: Mapping[str, Architecture] = {
    "llama-2-7b": _decoder("llama", 4096, 11008, 32, 32, 32, 32000),
    "llama-2-13b": _decoder("llama", 5120, 13824, 40, 40, 40, 32000),
    "llama-2-70b": _decoder("llama", 8192, 28672, 80, 64, 8, 32000),
    "llama-3-8b": _decoder("llama", 4096, 14336, 32, 32, 8, 128256),
    "llama-3-70b": _decoder("llama", 8192, 28672, 80, 64, 8, 128256),
    "llama-3.1-405b": _decoder("llama", 16384, 53248, 126, 128, 8, 128256),
    "llama-3.2-1b": _decoder("llama", 2048, 8192, 16, 32, 8, 128256, tied=True),
    "llama-3.2-3b": _decoder("llama", 3072, 8192, 28, 24, 8, 128256, tied=True),
    "tinyllama-1.1b": _decoder("llama", 2048, 5632, 22, 32, 4, 32000),
    "smollm2-135m": _decoder("llama", 576, 1536, 30, 9, 3, 49152, tied=True),
    "smollm2-360m": _decoder("llama", 960, 2560, 32, 15, 5, 49152, tied=True),
    "smollm2-1.7b": _decoder("llama", 2048, 8192, 24, 32, 32, 49152, tied=True),
    "smollm3-3b": _decoder("llama", 2048, 11008, 36, 16, 4, 128256, tied=True),
    "codellama-7b": _decoder("llama", 4096, 11008, 32, 32, 32, 32016),
    "codellama-34b": _decoder("llama", 8192, 22016, 48, 64, 8, 32000),
    "yi-6b": _decoder("llama", 4096, 11008, 32, 32, 4, 64000),
    "yi-34b": _decoder("llama", 7168, 20480, 60, 56, 8, 64000),
    "mistral-7b": _decoder("mistral", 4096, 14336, 32, 32, 8, 32000),
    "mistral-7b-v0.3": _decoder("mistral", 4096, 14336, 32, 32, 8, 32768),
    "ministral-8b": _decoder("mistral", 4096, 12288, 36, 32, 8, 131072),
    "mistral-nemo": _decoder("mistral", 5120, 14336, 40, 32, 8, 131072, head_dim=128),
    "mistral-small-24b": _decoder("mistral", 5120, 32768, 40, 32, 8, 131072, head_dim=128),
    "mixtral-8x7b": _decoder("mixtral", 4096, 14336, 32, 32, 8, 32000, experts=8, experts_per_token=2),
    "qwen2.5-0.5b": _decoder("qwen2", 896, 4864, 24, 14, 2, 151936, tied=True),
    "qwen2.5-1.5b": _decoder("qwen2", 1536, 8960, 28, 12, 2, 151936, tied=True),
    "qwen2.5-3b": _decoder("qwen2", 2048, 11008, 36, 16, 2, 151936, tied=True),
    "qwen2.5-7b": _decoder("qwen2", 3584, 18944, 28, 28, 4, 152064),
    "qwen2.5-14b": _decoder("qwen2", 5120, 13824, 48, 40, 8, 152064),
    "qwen2.5-32b": _decoder("qwen2", 5120, 27648, 64, 40, 8, 152064),
    "qwen2.5-72b": _decoder("qwen2", 8192, 29568, 80, 64, 8, 152064),
    "deepseek-r1-distill-qwen-1.5b": _decoder("qwen2", 1536, 8960, 28, 12, 2, 151936),
    "qwen3-0.6b": _decoder("qwen3", 1024, 3072, 28, 16, 8, 151936, tied=True, head_dim=128),
    "qwen3-1.7b": _decoder("qwen3", 2048, 6144, 28, 16, 8, 151936, tied=True, head_dim=128),
    "qwen3-4b": _decoder("qwen3", 2560, 9728, 36, 32, 8, 151936, tied=True, head_dim=128),
    "qwen3-8b": _decoder("qwen3", 4096, 12288, 36, 32, 8, 151936, head_dim=128),
    "qwen3-14b": _decoder("qwen3", 5120, 17408, 40, 40, 8, 151936, head_dim=128),
    "qwen3-32b": _decoder("qwen3", 5120, 25600, 64, 64, 8, 151936, head_dim=128),
    "gemma-2b": _decoder("gemma", 2048, 16384, 18, 8, 1, 256000, tied=True, head_dim=256),
    "gemma-7b": _decoder("gemma", 3072, 24576, 28, 16, 16, 256000, tied=True, head_dim=256),
    "gemma-2-2b": _decoder("gemma2", 2304, 9216, 26, 8, 4, 256000, tied=True, head_dim=256),
    "gemma-2-9b": _decoder("gemma2", 3584, 14336, 42, 16, 8, 256000, tied=True, head_dim=256),
    "gemma-2-27b": _decoder("gemma2", 4608, 36864, 46, 32, 16, 256000, tied=True, head_dim=128),
    "gemma-3-270m": _decoder("gemma3_text", 640, 2048, 18, 4, 1, 262144, tied=True, head_dim=256),
    "gemma-3-1b": _decoder("gemma3_text", 1152, 6912, 26, 4, 1, 262144, tied=True, head_dim=256),
    "phi-3-mini": _decoder("phi3", 3072, 8192, 32, 32, 32, 32064),
    "phi-3-medium": _decoder("phi3", 5120, 17920, 40, 40, 10, 32064),
    "phi-4": _decoder("phi3", 5120, 17920, 40, 40, 10, 100352),
    "phi-4-mini": _decoder("phi3", 3072, 8192, 32, 24, 8, 200064, tied=True),
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
    "gpt2-7b": _gpt2(4096, 32, 32),
    "pythia-1b": _decoder("gpt_neox", 2048, 8192, 16, 8, 8, 50304),
    "pythia-6.9b": _decoder("gpt_neox", 4096, 16384, 32, 32, 32, 50432),
    "bert-base": _encoder("bert", 768, 12, 12),
    "bert-large": _encoder("bert", 1024, 24, 16),
    "distilbert": _encoder("distilbert", 768, 6, 12),
    "bert-base-multilingual": _encoder("bert", 768, 12, 12, 119547),
    "roberta-base": _encoder("roberta", 768, 12, 12, 50265, 514, 1),
    "roberta-large": _encoder("roberta", 1024, 24, 16, 50265, 514, 1),
    "xlm-roberta-base": _encoder("roberta", 768, 12, 12, 250002, 514, 1),
    "xlm-roberta-large": _encoder("roberta", 1024, 24, 16, 250002, 514, 1),
    "vit-base": _encoder("vit", 768, 12, 12, 0, 0),
}


_ALIASES: Mapping[str, str] = {
    "llama-3.1-8b": "llama-3-8b",
    "llama-3.1-70b": "llama-3-70b",
    "llama-3.3-70b": "llama-3-70b",
    "hermes-3-llama-3.1-8b": "llama-3-8b",
    "deepseek-r1-0528-qwen3-8b": "qwen3-8b",
    "deepseek-r1-distill-llama-8b": "llama-3-8b",
    "deepseek-r1-distill-llama-70b": "llama-3-70b",
    **{f"deepseek-r1-distill-qwen-{size}": f"qwen2.5-{size}" for size in ("7b", "14b", "32b")},
    **{f"qwen2-{size}": f"qwen2.5-{size}" for size in ("0.5b", "1.5b", "7b", "72b")},
    **{f"qwen2.5-coder-{size}": f"qwen2.5-{size}" for size in ("0.5b", "1.5b", "3b", "7b", "14b", "32b")},
    **{f"qwen2.5-math-{size}": f"qwen2.5-{size}" for size in ("1.5b", "7b", "72b")},
    **{f"smollm-{size}": f"smollm2-{size}" for size in ("135m", "360m", "1.7b")},
    "tinyllama": "tinyllama-1.1b",
    "codellama-13b": "llama-2-13b",
    "zephyr-7b": "mistral-7b",
    "yi-1.5-6b": "yi-6b",
    "yi-1.5-34b": "yi-34b",
    "gemma-1.1-2b": "gemma-2b",
    "gemma-1.1-7b": "gemma-7b",
    "phi-3.5-mini": "phi-3-mini",
    "distilbert-base": "distilbert",
}
"""Models of the same shape under another name. A few tokens more or less in the vocabulary are the same here."""


_LONGEST_NAME = 80


def known_name(name: str) -> str | None:
    """The table's name for a model, also for its name on the hub (`meta-llama/Meta-Llama-3-8B-Instruct`), a dated or
    a quantised edition; None for a model that is not in the table.

    A name with a word that is not known to leave the shape as it is has a shape that nobody knows: a `-VL-` or
    `-Vision-` is another model.
    """
    plain = _QUANTISED.sub("", name.lower().rpartition("/")[2].removeprefix("meta-"))
    words = [word for word in plain.split("-") if word not in _SAME_SHAPE and not _is_date(word)]
    for left in (words, [word for word in words if word != "base"]):
        named = "-".join(left)
        for known in (plain, named, _VERSION.sub("", named)):
            if known in MODELS or known in _ALIASES:
                return _ALIASES.get(known, known)
    return None


@lru_cache(maxsize=1024)
def nearest_name(name: str) -> str | None:
    """The table's name that is most like one that it does not know; None where none is."""
    plain = name.lower().rpartition("/")[2].removeprefix("meta-")[:_LONGEST_NAME]
    near = get_close_matches(plain, [*MODELS, *_ALIASES], n=1, cutoff=0.6)
    return near[0] if near else None


def _is_date(word: str) -> bool:
    """As publishers write it: year and month in four digits."""
    return _DATE.fullmatch(word) is not None


def model_named(name: str) -> Architecture:
    """The model of that name. Raises InvalidInput that lists the known names."""
    found = MODELS.get(known_name(name) or "")
    if found is None:
        known = ", ".join(sorted(MODELS))
        raise InvalidInput(f"model {name!r} is not in the table; known are {known}; or give its config", param="model")
    return found
