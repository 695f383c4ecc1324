"""What the models of one family have in common, as transformers builds them.

Sources: `modeling_*.py` and `configuration_*.py` of transformers 5; the parameter counts that follow from this table
are compared with the real modules in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Family:
    """Traits that decide parameters and activations.

    `norms` counts the norms of hidden size in a layer, `qk_norm` adds one of head size for queries and for keys.
    `attention_bias` is for the projections into attention, `out_bias` for the one out of it, `mlp_bias` for the MLP.
    `style` names the order of the steps: `rotary` (pre-norm, one after the other), `parallel` (attention and MLP side
    by side), `gpt2`, `post` (norm after the residual), `vision`.
    `scores` is how eager attention makes them: `wide` takes their softmax in float32, `narrow` in their own type,
    `in_place` too, and divides them where they are. `joins_angles`: part of every head is left unturned and joined to
    the rest, which leaves heads before tokens in memory; what flash attention makes of them is copied back into order.
    `shipped` says that transformers has the module: without it the program follows the nearest relative.
    `usual` is what transformers takes for sizes that a configuration leaves out, where no other size decides it.
    `old_loss` is how the loss of transformers 4 treats the logits: `keeps` the half-precision ones beside the float32
    copy, `rebinds` their variable to it, or stays `narrow`.
    """

    style: Literal["rotary", "parallel", "gpt2", "post", "vision"] = "rotary"
    norm: Literal["rms", "gemma", "layer"] = "rms"
    norms: int = 2
    qk_norm: bool = False
    gated: bool = True
    activation: Literal["silu", "gelu", "new_gelu"] = "silu"
    fused_qkv: bool = False
    fused_gate: bool = False
    attention_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    learned_positions: bool = False
    head: Literal["lm", "lm_bias", "bert", "roberta", "distilbert", "image"] = "lm"
    softcap: bool = False
    scaled_embedding: bool = False
    scores: Literal["wide", "narrow", "in_place"] = "wide"
    joins_angles: bool = False
    tied: bool = False
    dropout: float = 0.0
    mixture: bool = False
    final_norm: bool = True
    shipped: bool = True
    old_loss: Literal["keeps", "rebinds", "narrow"] = "keeps"
    usual: Mapping[str, int] = field(default_factory=dict)
    names: Mapping[str, str] | None = None


_LLAMA = Family()
_GEMMA = Family(
    norm="gemma",
    activation="gelu",
    tied=True,
    scaled_embedding=True,
    usual={"head_dim": 256, "kv_heads": 4},
)
_ENCODER = Family(
    style="post",
    norm="layer",
    gated=False,
    activation="gelu",
    attention_bias=True,
    out_bias=True,
    mlp_bias=True,
    learned_positions=True,
    head="bert",
    tied=True,
    dropout=0.1,
    scores="narrow",
    final_norm=False,
    names={"q": "query", "k": "key", "v": "value", "o": "dense", "up": "dense", "down": "dense"},
)
_GPT2 = Family(
    style="gpt2",
    norm="layer",
    gated=False,
    activation="new_gelu",
    fused_qkv=True,
    attention_bias=True,
    out_bias=True,
    mlp_bias=True,
    learned_positions=True,
    tied=True,
    dropout=0.1,
    scores="narrow",
    names={"qkv": "c_attn", "o": "c_proj", "up": "c_fc", "down": "c_proj"},
)
_NEOX = Family(
    style="parallel",
    norm="layer",
    gated=False,
    activation="gelu",
    fused_qkv=True,
    attention_bias=True,
    out_bias=True,
    mlp_bias=True,
    joins_angles=True,
    names={"qkv": "query_key_value", "o": "dense", "up": "dense_h_to_4h", "down": "dense_4h_to_h"},
)

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": replace(_LLAMA, usual={"kv_heads": 8}),
    "granite": replace(_LLAMA, old_loss="rebinds"),
    "mixtral": replace(_LLAMA, mixture=True, usual={"kv_heads": 8, "experts": 8, "experts_per_token": 2}),
    "qwen2": replace(_LLAMA, attention_bias=True, usual={"kv_heads": 32}),
    "qwen3": replace(_LLAMA, qk_norm=True, usual={"kv_heads": 32, "head_dim": 128}),
    "qwen": replace(
        _LLAMA,
        shipped=False,
        fused_qkv=True,
        attention_bias=True,
        old_loss="narrow",
        names={"qkv": "c_attn", "o": "c_proj", "gate": "w2", "up": "w1", "down": "c_proj"},
    ),
    "gemma": replace(_GEMMA, usual={"head_dim": 256, "kv_heads": 16}),
    "gemma2": replace(_GEMMA, norms=4, softcap=True),
    "gemma3_text": replace(_GEMMA, norms=4, qk_norm=True),
    "phi3": replace(
        _LLAMA,
        fused_qkv=True,
        fused_gate=True,
        joins_angles=True,
        names={"qkv": "qkv_proj", "gate_up": "gate_up_proj"},
    ),
    "phi": replace(
        _NEOX,
        norms=1,
        fused_qkv=False,
        activation="new_gelu",
        head="lm_bias",
        names={"o": "dense", "up": "fc1", "down": "fc2"},
    ),
    "falcon": replace(
        _NEOX,
        norms=1,
        attention_bias=False,
        out_bias=False,
        mlp_bias=False,
        tied=True,
        scores="in_place",
        joins_angles=False,
    ),
    "gpt2": _GPT2,
    "gpt_bigcode": replace(_GPT2, activation="gelu", scores="wide", old_loss="narrow"),
    "gpt_neox": _NEOX,
    "bert": _ENCODER,
    "roberta": replace(_ENCODER, head="roberta"),
    "distilbert": replace(
        _ENCODER,
        head="distilbert",
        names={"q": "q_lin", "k": "k_lin", "v": "v_lin", "o": "out_lin", "up": "lin1", "down": "lin2"},
    ),
    "vit": replace(_ENCODER, style="vision", head="image", dropout=0.0, scores="wide", final_norm=True),
}

_PLAIN = {
    "q": "q_proj",
    "k": "k_proj",
    "v": "v_proj",
    "o": "o_proj",
    "gate": "gate_proj",
    "up": "up_proj",
    "down": "down_proj",
    "qkv": "qkv_proj",
}


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix of a layer: `role` in the layer's program, `name` in the model, dimensions, and whether a bias."""

    role: str
    name: str
    into: str
    out: str
    parts: float = 1.0
    bias: bool = False
    attention: bool = False


def matrices(family: Family) -> tuple[Matrix, ...]:
    """The matrices of one layer, in the order of their use; those of a mixture's experts are not among them."""
    names = {**_PLAIN, **(family.names or {})}
    bias, out_bias, mlp_bias = family.attention_bias, family.out_bias, family.mlp_bias
    found: list[Matrix] = []
    if family.fused_qkv:
        found.append(Matrix("qkv", names["qkv"], "h", "f", 1.0, bias, True))
    else:
        found += [
            Matrix(role, names[role], "h", out, 1.0, bias, True) for role, out in (("q", "q"), ("k", "k"), ("v", "k"))
        ]
    found.append(Matrix("o", names["o"], "q", "h", 1.0, out_bias, True))
    if family.mixture:
        found.append(Matrix("router", "gate", "h", "e"))
    elif family.fused_gate:
        found.append(Matrix("gate_up", names["gate_up"], "h", "i", 2.0))
    elif family.gated:
        found += [Matrix("gate", names["gate"], "h", "i"), Matrix("up", names["up"], "h", "i")]
    else:
        found.append(Matrix("up", names["up"], "h", "i", 1.0, mlp_bias))
    if not family.mixture:
        found.append(Matrix("down", names["down"], "i", "h", 1.0, mlp_bias))
    return tuple(found)


def fused(own: tuple[Matrix, ...]) -> tuple[Matrix, ...]:
    """The same, with queries, keys and values out of one matrix."""
    bias = any(each.bias for each in own if each.role == "q")
    return (
        Matrix("qkv", _PLAIN["qkv"], "h", "f", 1.0, bias, True),
        *(each for each in own if each.role not in set("qkv")),
    )
