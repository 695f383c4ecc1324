"""Models and rows of the recipe's benchmark: configurations as their publishers have them, but for their sizes."""

from __future__ import annotations

import runpy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
_SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 512,
}  # fmt: skip
_GROUPED = {"num_key_value_heads": 2}
_LLAMA_3_ROPE = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip
# What decides how a model computes: of its config.json, everything but widths and depth.
CONFIGS: dict[str, dict[str, Any]] = {
    "meta-llama/Llama-3.2-1B": {
        "model_type": "llama", **_GROUPED, "rope_parameters": _LLAMA_3_ROPE, "tie_word_embeddings": True,
    },
    "HuggingFaceTB/SmolLM2-135M": {"model_type": "llama", **_GROUPED, "tie_word_embeddings": True},
    "HuggingFaceTB/SmolLM3-3B": {"model_type": "smollm3", **_GROUPED, "no_rope_layer_interval": 2},
    "mistralai/Mistral-7B-v0.1": {"model_type": "mistral", **_GROUPED, "sliding_window": 48},
    "Qwen/Qwen2.5-0.5B": {"model_type": "qwen2", **_GROUPED, "tie_word_embeddings": True},
    "Qwen/Qwen3-0.6B": {"model_type": "qwen3", **_GROUPED, "head_dim": 16, "tie_word_embeddings": True},
    "google/gemma-2b": {"model_type": "gemma", "num_key_value_heads": 1, "head_dim": 16},
    "google/gemma-2-2b": {
        "model_type": "gemma2", **_GROUPED, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 48,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    },
    "google/gemma-3-1b-pt": {
        "model_type": "gemma3_text", "num_key_value_heads": 1, "head_dim": 16, "query_pre_attn_scalar": 16,
        "sliding_window": 48, "layer_types": ["sliding_attention", "full_attention"],
    },
    "microsoft/phi-2": {"model_type": "phi", "partial_rotary_factor": 0.5, "resid_pdrop": 0.1},
    "microsoft/Phi-3-mini-4k-instruct": {"model_type": "phi3", "sliding_window": 47},
    "allenai/OLMo-2-0425-1B": {"model_type": "olmo2", **_GROUPED},
    "ibm-granite/granite-3.1-2b-base": {
        "model_type": "granite", **_GROUPED, "embedding_multiplier": 12.0, "attention_multiplier": 0.125,
        "residual_multiplier": 0.22, "logits_scaling": 8.0, "attention_dropout": 0.1,
    },
    "CohereForAI/c4ai-command-r-v01": {"model_type": "cohere", **_GROUPED, "logit_scale": 0.0625},
    "stabilityai/stablelm-2-1_6b": {
        "model_type": "stablelm", "num_key_value_heads": 4, "partial_rotary_factor": 0.5, "use_qkv_bias": True,
    },
    "bigcode/starcoder2-3b": {
        "model_type": "starcoder2", **_GROUPED, "sliding_window": 48, "residual_dropout": 0.1,
        "embedding_dropout": 0.1, "attention_dropout": 0.1,
    },
    "EleutherAI/pythia-160m": {"model_type": "gpt_neox", "rotary_pct": 0.5, "use_parallel_residual": True},
    "openai-community/gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512},
    "facebook/opt-125m": {"model_type": "opt", "ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.1},
    "bigscience/bloom-560m": {"model_type": "bloom", "n_layer": 2, "n_head": 4, "hidden_size": 32},
}  # fmt: skip
DROPOUTS = (
    "dropout", "attention_dropout", "residual_dropout", "embedding_dropout", "hidden_dropout", "resid_pdrop",
    "embd_pdrop", "attn_pdrop", "activation_dropout",
)  # fmt: skip
CHAT = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


@dataclass(frozen=True)
class Case:
    """`kind`: sft (prompt and completion), chat (two answers in each conversation), tools (an answer that follows what
    a tool said), or pairs (of answers, of which one is the better)."""

    model: str
    kind: str

    @property
    def name(self) -> str:
        return f"{self.model}, {self.kind}"


def cases() -> Iterator[Case]:
    """Each model twice: on single answers, and in turn on conversations, on those with a tool in them, and on pairs."""
    for number, model in enumerate(CONFIGS):
        yield Case(model, "sft")
        yield Case(model, ("chat", "tools", "pairs")[number % 3])


def rows(kind: str, count: int = 40) -> list[dict[str, Any]]:
    """Texts as unlike in length as people's are: most are short, some are ten times as long."""
    return [_row(kind, number) for number in range(count)]


def _row(kind: str, number: int) -> dict[str, Any]:
    asked, said = f"what is {number} times 3?", f"{3 * number}. " + "as was said, " * (number * number % 11)
    if kind == "sft":
        return {"prompt": asked, "completion": said}
    if kind == "pairs":
        return {"prompt": asked, "chosen": said, "rejected": "i do not know, " * (1 + number % 5)}
    if kind == "chat":
        talk = [("user", asked), ("assistant", said), ("user", "and once more?"), ("assistant", f"{3 * number}")]
    else:
        talk = [
            ("system", "use the tool"),
            ("user", asked),
            ("tool", f"{{'product': {3 * number}}}"),
            ("assistant", said),
        ]
    return {"messages": [{"role": role, "content": content} for role, content in talk]}


def make(model: str, folder: Path, *, dropout: bool = True, sizes: Mapping[str, int] | None = None) -> str:
    """A model of that configuration with random weights, and its tokenizer of bytes, in `folder`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = runpy.run_path(str(EXAMPLES / "tiny_model.py"))["byte_tokenizer"]()
    told = dict(CONFIGS[model])
    kind = told.pop("model_type")
    plain = {} if "n_layer" in told else dict(_SIZES)
    marks = {"vocab_size": len(tokenizer), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = AutoConfig.for_model(kind, **{**plain, **told, **marks, **(sizes or {})})
    for name in DROPOUTS:
        if not dropout and getattr(config, name, None):
            setattr(config, name, 0.0)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    return str(folder)
