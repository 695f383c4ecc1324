"""Configurations: what cannot be is refused, and the message names the field, the value and the way out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.core.memory import (
    MODELS,
    Architecture,
    Training,
    architecture_of,
    estimate,
    model_named,
    peak_of,
    profile_named,
    verdict,
)
from app.core.memory.formulas import accelerate_bytes, frenzy_bytes, frenzy_parameters
from app.core.memory.parameters import parameters_of
from app.errors import InvalidInput

GIB = 1 << 30
LLAMA = MODELS["llama-3-8b"]
LORA = Training(method="lora", batch=2, sequence=512)
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


@pytest.mark.parametrize(
    ("param", "change"),
    [
        ("method", {"method": "prefix"}),
        ("precision", {"precision": "fp8"}),
        ("optimizer", {"optimizer": "lion"}),
        ("attention", {"attention": "ring"}),
        ("loss", {"loss": "hinge"}),
        ("sharding", {"sharding": "zero9", "gpus": 2}),
        ("batch", {"batch": 0}),
        ("sequence", {"sequence": -1}),
        ("accumulation", {"accumulation": 0}),
        ("gpus", {"gpus": 0}),
        ("rank", {"rank": 0}),
        ("adapter_dropout", {"adapter_dropout": 1.0}),
        ("saves", {"saves": frozenset({"mlp"})}),
        ("saves", {"method": "full", "saves": frozenset({"lm_head"})}),
        ("reference_pass", {"method": "full", "reference_pass": True}),
        ("quantisation", {"method": "qlora"}),
        ("quantisation", {"quantisation": "nf4"}),
        ("precision", {"method": "qlora", "quantisation": "nf4", "precision": "amp_bf16"}),
        ("autocast", {"precision": "amp_bf16", "autocast": True}),
        ("precision_by_gpu", {"precision": "fp16", "precision_by_gpu": True}),
        ("tensor_parallel", {"gpus": 4, "tensor_parallel": 3}),
        ("sharding", {"sharding": "fsdp"}),
        ("accumulation", {"optimizer": "in_backward_adamw", "accumulation": 2}),
    ],
)
def test_contradictions_name_the_field(param: str, change: dict[str, Any]) -> None:
    """Every impossible configuration is refused where it is made, by the name of one of its fields."""
    with pytest.raises(InvalidInput) as refused:
        Training(**({"method": "lora", "batch": 2, "sequence": 512} | change))
    assert refused.value.param == param
    assert refused.value.error_code == "invalid_input"
    assert repr(change.get(param, "none")) in refused.value.message


@pytest.mark.parametrize(
    ("param", "model", "change"),
    [
        ("targets", LLAMA, {"targets": frozenset({"c_attn"})}),
        ("targets", LLAMA, {"targets": frozenset()}),
        ("tensor_parallel", LLAMA, {"gpus": 16, "tensor_parallel": 16}),
        ("sequence", MODELS["bert-base"], {"sequence": 513}),
    ],
)
def test_what_does_not_go_with_the_model(param: str, model: Architecture, change: dict[str, Any]) -> None:
    """A configuration that this model cannot have is refused when it is predicted."""
    with pytest.raises(InvalidInput) as refused:
        peak_of(model, replace(LORA, **change))
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("param", "change"),
    [
        ("model_type", {"model_type": "rwkv"}),
        ("model_type", {"model_type": None}),
        ("hidden_size", {"hidden_size": None}),
        ("hidden_size", {"hidden_size": "64"}),
        ("num_hidden_layers", {"num_hidden_layers": 0}),
        ("num_attention_heads", {"num_attention_heads": 5}),
        ("kv_heads", {"num_key_value_heads": 3}),
        ("vocab", {"vocab_size": 0}),
        ("attention_dropout", {"attention_dropout": 1.5}),
        (
            "experts_per_token",
            {"model_type": "mixtral", "num_key_value_heads": 4, "num_local_experts": 2, "num_experts_per_tok": 3},
        ),
    ],
)
def test_a_wrong_config_names_its_key(param: str, change: dict[str, Any]) -> None:
    """What is missing or wrong in a config.json is named by its key."""
    with pytest.raises(InvalidInput) as refused:
        architecture_of(CONFIG | change)
    assert refused.value.param == param


def test_a_config_gets_the_defaults_of_transformers() -> None:
    """What a config.json leaves out has the value that the library would give it."""
    found = architecture_of(CONFIG)
    assert (found.intermediate, found.kv_heads, found.head_dim, found.tied) == (256, 4, 16, False)
    gpt2 = architecture_of({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100})
    assert gpt2.tied
    assert gpt2.dropout == pytest.approx(0.1)
    plain = {"hidden_size": 1024, "num_attention_heads": 32, "num_hidden_layers": 2, "vocab_size": 100}
    mixed = architecture_of(plain | {"model_type": "mixtral"})
    assert (mixed.kv_heads, mixed.experts, mixed.experts_per_token) == (8, 8, 2)
    assert architecture_of(plain | {"model_type": "mixtral", "num_key_value_heads": None}).kv_heads == 32
    assert architecture_of(plain | {"model_type": "qwen3"}).head_dim == 128
    assert architecture_of(plain | {"model_type": "gpt_bigcode"}).kv_heads == 1
    labelled = architecture_of(CONFIG | {"id2label": {"0": "a", "1": "b", "2": "c"}})
    assert labelled.labels == 3


def test_names_in_the_tables() -> None:
    """Models and profiles are found by name; an unknown name is answered with the known ones."""
    assert model_named("LLaMA-3-8B") is LLAMA
    for look_up, param in ((model_named, "model"), (profile_named, "semantics")):
        with pytest.raises(InvalidInput) as refused:
            look_up("nothing")  # type: ignore[operator]  # tried with a wrong one on purpose
        assert refused.value.param == param
        assert "take one of" in refused.value.message or "known are" in refused.value.message


def test_the_verdict_is_careful() -> None:
    """A GPU fits with room for fragmentation and the context; below the least that could do it does not."""
    found = estimate(LLAMA, LORA)
    assert verdict(found, found.process.high) == "fits"
    assert verdict(found, found.process.low - 1) == "no"
    assert verdict(found, found.process.low) == "tight"
    assert verdict(found, found.allocated.expected) != "fits"
    with pytest.raises(InvalidInput) as refused:
        verdict(found, 0)
    assert refused.value.param == "capacity_bytes"
    with pytest.raises(InvalidInput) as refused:
        estimate(LLAMA, LORA, context_bytes=-1)
    assert refused.value.param == "context_bytes"


def test_a_larger_gpu_never_gets_a_worse_verdict() -> None:
    """From small to large the answers go from no over tight to fits, once."""
    found = estimate(LLAMA, LORA)
    answers = [verdict(found, size * GIB) for size in range(8, 81)]
    assert sorted(answers, key=["no", "tight", "fits"].index) == answers
    assert set(answers) == {"no", "tight", "fits"}


def test_what_makes_a_model_fit() -> None:
    """An 8B model: full training needs a large GPU, LoRA a middle one, QLoRA with checkpointing a small one."""
    full = Training(method="full", batch=1, sequence=2048, checkpointing=True)
    lora = replace(full, method="lora")
    qlora = replace(lora, method="qlora", quantisation="nf4_dq", autocast=True)
    needs = [estimate(LLAMA, each).process.expected / GIB for each in (full, lora, qlora)]
    assert needs[0] > 75
    assert 22 > needs[1] > 18
    assert needs[2] < 16


def test_optimizers_keep_what_they_keep() -> None:
    """Resident bytes per parameter in bf16: 2 for SGD, 4 with momentum, 6 for AdamW, about 4 in 8 bits, 2 paged."""
    count = parameters_of(LLAMA).total
    expected = {"sgd": 2, "sgd_momentum": 4, "adamw_fused": 6, "adamw_8bit": 4, "paged_adamw_8bit": 2, "adafactor": 2}
    for name, size in expected.items():
        # Tried with any word.
        training = Training(method="full", batch=1, sequence=128, optimizer=name)  # type: ignore[arg-type]
        assert peak_of(LLAMA, training).resident / count == pytest.approx(size, abs=0.05), name


def test_whole_modules_beside_adapters() -> None:
    """A head trained beside adapters costs a copy, a gradient and two states of its own, each in half precision."""
    plain = replace(LORA, optimizer="adamw_fused")
    saved = replace(plain, saves=frozenset({"lm_head"}))
    table = LLAMA.vocab * LLAMA.hidden
    assert peak_of(LLAMA, saved).resident - peak_of(LLAMA, plain).resident == 3 * 2 * table
    assert peak_of(LLAMA, saved).optimizer - peak_of(LLAMA, plain).optimizer == 4 * 2 * table


def test_families_without_a_module_are_less_certain() -> None:
    """Where only the nearest relative could be followed, the bounds are wider, and the verdict with them."""
    near = replace(LLAMA, family="qwen")
    known, guessed = estimate(LLAMA, LORA), estimate(near, replace(LORA, targets=frozenset({"c_attn"})))
    for found, share in ((known, 0.05), (guessed, 0.25)):
        assert found.allocated.high / found.allocated.expected == pytest.approx(1 + share, abs=0.001)
        assert found.reserved.expected <= found.reserved.high


def test_foreach_needs_one_more_gradient() -> None:
    """The foreach step holds one temporary for all gradients; the fused step and 8-bit optimizers hold none."""
    fused = Training(method="full", batch=1, sequence=128, optimizer="adamw_fused")
    gradients = 2 * parameters_of(LLAMA).total
    foreach = peak_of(LLAMA, replace(fused, optimizer="adamw_foreach")).optimizer
    assert foreach - peak_of(LLAMA, fused).optimizer == gradients


def test_an_optimizer_inside_the_way_back_frees_the_gradients() -> None:
    """Each gradient is used and dropped at once: the step at the end holds none."""
    usual = Training(method="full", batch=1, sequence=128, optimizer="adamw_fused", checkpointing=True)
    inside = peak_of(LLAMA, replace(usual, optimizer="in_backward_adamw"))
    assert inside.optimizer == inside.resident
    assert peak_of(LLAMA, usual).allocated - inside.allocated > parameters_of(LLAMA).total


def test_tensor_parallel_splits_the_matrices() -> None:
    """Two GPUs hold half of every layer's matrices each, and the embeddings whole."""
    one = Training(method="full", batch=1, sequence=128, optimizer="sgd")
    both = replace(one, gpus=2, tensor_parallel=2)
    counts = parameters_of(LLAMA)
    saved = peak_of(LLAMA, one).resident - peak_of(LLAMA, both).resident
    assert saved == counts.layers * counts.layer_matrices


@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium", "gpt2-xl"])
def test_the_paper_counts_gpt2_well(name: str) -> None:
    """`V h + l (12 h^2 + 13 h)` leaves out positions and the last norm only: below one percent of a GPT-2."""
    assert frenzy_parameters(MODELS[name]) == pytest.approx(parameters_of(MODELS[name]).total, rel=0.01)


def test_the_paper_formula() -> None:
    """20 bytes a parameter, and 34 s b h + 5 a s^2 b bytes a layer on one GPU; both shrink with tensor parallelism."""
    model = MODELS["gpt2-7b"]
    training = Training(method="full", batch=2, sequence=1024)
    layer = 34 * 1024 * 2 * 4096 + 5 * 32 * 1024**2 * 2
    assert frenzy_bytes(model, training) == 20 * frenzy_parameters(model) + 32 * layer
    spread = replace(training, gpus=4, tensor_parallel=4)
    parts = 1024 * 2 * 4096 * (10 + 6) + 5 * 32 * 1024**2 * 2 // 4
    assert frenzy_bytes(model, spread) == 5 * frenzy_parameters(model) + 32 * parts


def test_what_accelerate_says() -> None:
    """16 bytes a parameter in float32 and 8 in half precision, whatever the batch, the sequence and the method."""
    wide = Training(method="full", batch=64, sequence=4096, precision="fp32")
    assert accelerate_bytes(LLAMA, wide) == 16 * parameters_of(LLAMA).total
    assert accelerate_bytes(LLAMA, LORA) == accelerate_bytes(LLAMA, replace(LORA, batch=64))
    assert accelerate_bytes(LLAMA, LORA) == 8 * parameters_of(LLAMA).total
