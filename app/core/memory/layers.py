"""The programs of the layers, step by step as the modules of transformers run them.

Names that are bound again, and those deleted, matter: a tensor lives as long as the module's own variable does.
"""

from __future__ import annotations

from app.core.memory.block import LayerModules
from app.core.memory.ops import FULL
from app.core.memory.tape import ShadowTensor

T_H, T_I, T_Q, T_K, T_F = ("t", "h"), ("t", "i"), ("t", "q"), ("t", "k"), ("t", "f")
SCORES = ("b", "a", "s", "s")


def rotary_layer(block: LayerModules, x: ShadowTensor) -> ShadowTensor:
    """Llama, Mistral, Mixtral, Qwen, Gemma, Phi-3: norm, attention, residual, norm, gated MLP, residual."""
    four = block.form.norms == 4
    residual = x
    x = block.norm(x, "before_attention")
    x, _weights = attention(block, x)
    if four:
        x = block.norm(x, "after_attention")
    x = block.ops.add(residual, block.resid_dropout(x))
    residual = x
    x = block.norm(x, "before_mlp")
    x = mixture(block, x) if block.form.mixture else gated_mlp(block, x)
    if four:
        x = block.norm(x, "after_mlp")
    return block.ops.add(residual, block.resid_dropout(x))


def parallel_layer(block: LayerModules, x: ShadowTensor) -> ShadowTensor:
    """GPT-NeoX, Phi, Falcon: attention and MLP both read the norm of the input; their sum is added to it."""
    normed = block.norm(x, "before_attention")
    attended, _weights = attention(block, normed)
    attended = block.resid_dropout(attended)
    if block.form.norms == 2:
        normed = block.norm(x, "before_mlp")
    fed = block.resid_dropout(plain_mlp(block, normed))
    del normed
    fed = block.ops.add(fed, attended)
    return block.ops.add(fed, x)


def gpt2_layer(block: LayerModules, x: ShadowTensor) -> ShadowTensor:
    """GPT-2: norm, attention with dropout, residual, norm, MLP with dropout, residual."""
    residual = x
    x = block.norm(x, "before_attention")
    attended, _weights = attention(block, x)
    attended = block.resid_dropout(attended)
    x = block.ops.add(attended, residual)
    residual = x
    x = block.norm(x, "before_mlp")
    fed = block.resid_dropout(plain_mlp(block, x))
    return block.ops.add(residual, fed)


def vision_layer(block: LayerModules, x: ShadowTensor) -> ShadowTensor:
    """ViT: as GPT-2, without its way of keeping variables."""
    residual = x
    x, _weights = attention(block, block.norm(x, "before_attention"))
    x = block.ops.add(block.resid_dropout(x), residual)
    residual = x
    x = block.norm(x, "before_mlp")
    x = plain_mlp(block, x)
    return block.ops.add(block.resid_dropout(x), residual)


def post_layer(block: LayerModules, x: ShadowTensor) -> ShadowTensor:
    """BERT, RoBERTa, DistilBERT: the norm comes after the residual."""
    attended, _weights = attention(block, x)
    if block.form.head != "distilbert":
        attended = block.resid_dropout(attended)
    x = block.norm(block.ops.add(attended, x), "before_attention")
    del attended
    active = activated(block, x)
    fed = block.linear("down", active)
    if block.form.head == "distilbert":
        del active
    fed = block.resid_dropout(fed)
    return block.norm(block.ops.add(fed, x), "before_mlp")


LAYERS = {
    "rotary": rotary_layer,
    "parallel": parallel_layer,
    "gpt2": gpt2_layer,
    "vision": vision_layer,
    "post": post_layer,
}


def attention(block: LayerModules, x: ShadowTensor) -> tuple[ShadowTensor, ShadowTensor | None]:
    """Projections, angles where the family has them, the kernel, and the projection out; with eager attention's
    weights, which the layer's own variable holds to its end."""
    q, k, v = _projections(block, x)
    if block.form.qk_norm:
        q, k = block.head_norm(q, "q"), block.head_norm(k, "k")
    if block.angles is not None:
        straight_q, straight_k = q, k
        q, k = block.rotary(straight_q, straight_k)
        del straight_q, straight_k
    mixed, weights = _kernel(block, q, k, v)
    return block.linear("o", mixed), weights


def _projections(block: LayerModules, x: ShadowTensor) -> tuple[ShadowTensor, ShadowTensor, ShadowTensor]:
    ops = block.ops
    if block.fuses_late:
        parts = ops.split(block.linear("qkv", x), (T_Q, T_K, T_K))
        return parts[0], parts[1], parts[2]
    if not block.form.fused_qkv:
        q, k, v = block.linear("q", x), block.linear("k", x), block.linear("v", x)
        if block.form.style == "rotary":
            return ops.transposed(q), ops.transposed(k), v
        return q, k, v
    fused = block.linear("qkv", x)
    parts = ops.slices(fused, (T_Q, T_K, T_K)) if block.form.style == "rotary" else ops.split(fused, (T_Q, T_K, T_K))
    return parts[0], parts[1], parts[2]


def _kernel(
    block: LayerModules, q: ShadowTensor, k: ShadowTensor, v: ShadowTensor
) -> tuple[ShadowTensor, ShadowTensor | None]:
    ops = block.ops
    own = block.setting.semantics.own_attention
    if block.attention == "flash" and (q.item == 2 or ops.autocast) and not own:
        mixed = block.flash(q, k, v)
        return ops.contiguous(mixed) if block.form.joins_angles else mixed, None
    if block.grouped:
        k, v = ops.repeated(k, T_Q), ops.repeated(v, T_Q)
    if block.attention != "eager":
        mixed = ops.flash(q, k, v)
        return ops.contiguous(mixed) if own else mixed, None
    return _eager(block, q, k, v)


def _eager(block: LayerModules, q: ShadowTensor, k: ShadowTensor, v: ShadowTensor) -> tuple[ShadowTensor, ShadowTensor]:
    """The whole matrix of scores. Views into a fused projection are copied for the product of several sequences."""
    ops = block.ops
    copied = block.form.fused_qkv and block.setting.training.batch > 1
    if copied and block.angles is None:
        q, k = ops.contiguous(q), ops.contiguous(k)
    scores = ops.product(q, k, SCORES)
    if block.form.scores != "in_place":
        scores = ops.scale(scores)
    if block.form.softcap:
        scores = ops.scale(scores)
        scores = ops.pointwise(scores, keeps="output")
        scores = ops.scale(scores)
    if block.mask is not None:
        scores = ops.plus_mask(scores, block.mask)
    if block.form.scores == "wide":
        scores = ops.cast(ops.softmax(scores, FULL), q.item)
    else:
        scores = ops.cast(ops.softmax(scores), v.item)
    scores = ops.dropout(scores, block.model.attention_dropout)
    if copied:
        v = ops.contiguous(v)
    return ops.clone(ops.product(scores, v, T_Q)), scores


def gated_mlp(block: LayerModules, x: ShadowTensor) -> ShadowTensor:
    """`down(act(gate(x)) * up(x))`."""
    ops = block.ops
    if not block.form.fused_gate:
        return block.linear("down", block.gated(block.linear("gate", x), lambda: block.linear("up", x)))
    gate, up = ops.split(block.linear("gate_up", x), (T_I, T_I))
    up = ops.mul(up, ops.pointwise(gate))
    return block.linear("down", up)


def plain_mlp(block: LayerModules, x: ShadowTensor) -> ShadowTensor:
    """`down(act(up(x)))`."""
    return block.linear("down", activated(block, x))


def activated(block: LayerModules, x: ShadowTensor) -> ShadowTensor:
    """`act(up(x))`, the activation as the family writes it."""
    x = block.linear("up", x)
    written_out = block.form.activation == "new_gelu" and not block.setting.semantics.fuses_gelu
    return new_gelu(block, x) if written_out else block.ops.pointwise(x)


def new_gelu(block: LayerModules, x: ShadowTensor) -> ShadowTensor:
    """`0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))`, one operator after the other."""
    ops = block.ops
    half = ops.scale(x)
    inner = ops.add(x, ops.scale(ops.power(x)))
    inner = ops.scale(inner)
    inner = ops.pointwise(inner, keeps="output")
    inner = ops.plus_number(inner)
    return ops.mul(half, inner)


def mixture(block: LayerModules, x: ShadowTensor) -> ShadowTensor:
    """Every token goes through `m` experts: gathered, multiplied, weighted and added back."""
    ops = block.ops
    out = ops.tape.like(x)
    chances = ops.softmax(block.linear("router", x), 4)
    gathered = ops.gathered(x, ("t", "m", "h"))
    mixed = block.experts(gathered)
    del gathered
    mixed = ops.weighted(mixed, chances)
    return ops.scattered(mixed, out)
