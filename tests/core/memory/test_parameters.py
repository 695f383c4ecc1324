"""Parameter counts: those of the real modules, for every family."""

from __future__ import annotations

import math
from typing import Any

import pytest

from app.core.memory import architecture_of
from app.core.memory.families import FAMILIES, matrices
from app.core.memory.parameters import adapter_parameters, parameters_of

_SMALL: dict[str, Any] = {
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "vocab_size": 1009,
    "max_position_embeddings": 128,
}
_GROUPED = _SMALL | {"num_key_value_heads": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _GROUPED | {"model_type": "llama"},
    "llama-tied": _GROUPED | {"model_type": "llama", "tie_word_embeddings": True},
    "llama-2-7b": _SMALL
    | {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32},
    "mistral": _GROUPED | {"model_type": "mistral"},
    "mixtral": _GROUPED | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "granite": _GROUPED | {"model_type": "granite", "tie_word_embeddings": True},
    "qwen2": _GROUPED | {"model_type": "qwen2"},
    "qwen2.5-tied": _GROUPED | {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": _GROUPED | {"model_type": "qwen3", "head_dim": 64},
    "gemma": _GROUPED | {"model_type": "gemma", "head_dim": 64},
    "gemma2": _GROUPED | {"model_type": "gemma2", "head_dim": 64},
    "gemma3": _GROUPED | {"model_type": "gemma3_text", "head_dim": 64},
    "phi3": _GROUPED | {"model_type": "phi3", "pad_token_id": 0},
    "phi": _SMALL | {"model_type": "phi"},
    "falcon": _SMALL
    | {"model_type": "falcon", "ffn_hidden_size": 512, "multi_query": True, "new_decoder_architecture": False},
    "gpt2": {"model_type": "gpt2", "n_embd": 192, "n_layer": 3, "n_head": 6, "vocab_size": 1009, "n_positions": 64},
    "gpt_bigcode": {
        "model_type": "gpt_bigcode",
        "n_embd": 192,
        "n_layer": 3,
        "n_head": 6,
        "vocab_size": 1009,
        "n_positions": 64,
        "multi_query": True,
    },
    "gpt_neox": _SMALL | {"model_type": "gpt_neox"},
    "bert": _SMALL | {"model_type": "bert", "num_labels": 3},
    "roberta": _SMALL | {"model_type": "roberta", "type_vocab_size": 1, "num_labels": 2},
    "distilbert": {
        "model_type": "distilbert",
        "dim": 192,
        "hidden_dim": 512,
        "n_layers": 3,
        "n_heads": 6,
        "vocab_size": 1009,
        "max_position_embeddings": 128,
        "num_labels": 2,
    },
    "vit": {
        "model_type": "vit",
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "image_size": 64,
        "patch_size": 16,
        "num_labels": 5,
    },
}


def _meta(config: dict[str, Any]) -> Any:
    """The real module, without any memory for its weights."""
    import torch
    import transformers

    given = dict(config)
    real = transformers.AutoConfig.for_model(given.pop("model_type"), **given)
    kinds = {"bert": "SequenceClassification", "roberta": "SequenceClassification"}
    kinds |= {"distilbert": "SequenceClassification", "vit": "ImageClassification"}
    auto = getattr(transformers, "AutoModelFor" + kinds.get(config["model_type"], "CausalLM"))
    with torch.device("meta"):
        return auto.from_config(real)


@pytest.mark.training
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_as_many_as_the_real_module_has(name: str) -> None:
    """Counted from the configuration alone, every family has exactly the parameters of its transformers module."""
    module = _meta(CONFIGS[name])
    assert parameters_of(architecture_of(CONFIGS[name])).total == sum(each.numel() for each in module.parameters())


@pytest.mark.training
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3", "gpt2", "gpt_neox", "bert", "distilbert"])
@pytest.mark.parametrize("rank", [4, 17])
def test_adapters_as_many_as_peft_makes(name: str, rank: int) -> None:
    """LoRA on every matrix of a layer adds exactly the parameters that peft adds."""
    import peft

    model = architecture_of(CONFIGS[name])
    names = {each.name for each in matrices(model.form)}
    if name in {"bert", "gpt2"}:
        names -= {"dense", "c_proj"}  # peft would also take the pooler's matrix, and both projections, by these names
    settings = peft.LoraConfig(r=rank, target_modules=sorted(names), fan_in_fan_out=name == "gpt2")
    adapted = peft.get_peft_model(_meta(CONFIGS[name]), settings)
    trained = sum(each.numel() for each in adapted.parameters() if each.requires_grad)
    assert adapter_parameters(model, rank, frozenset(names)) == trained


def test_every_family_is_counted() -> None:
    """No family is without a comparison, except Qwen 1, whose module transformers does not ship."""
    compared = {config["model_type"] for config in CONFIGS.values()}
    assert set(FAMILIES) - compared == {"qwen"}


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("llama-2-70b", 68_976_648_192),
        ("mistral-7b", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
        ("gemma-2-9b", 9_241_705_984),
        ("gemma-7b", 8_537_680_896),
        ("phi-3-mini", 3_821_079_552),
        ("qwen2.5-7b", 7_615_616_512),
        ("llama-3.1-405b", 405_853_388_800),
        ("smollm3-3b", 3_075_098_624),
        ("codellama-7b", 6_738_546_688),
        ("codellama-34b", 33_743_970_304),
        ("yi-6b", 6_061_035_520),
        ("yi-34b", 34_388_917_248),
        ("ministral-8b", 8_019_808_256),
        ("mistral-nemo", 12_247_782_400),
        ("mistral-small-24b", 23_572_403_200),
        ("qwen2.5-3b", 3_085_938_688),
        ("qwen2.5-14b", 14_770_033_664),
        ("qwen2.5-32b", 32_763_876_352),
        ("qwen2.5-72b", 72_706_203_648),
        ("deepseek-r1-distill-qwen-1.5b", 1_777_088_000),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-14b", 14_768_307_200),
        ("qwen3-32b", 32_762_123_264),
        ("gemma-2-27b", 27_227_128_320),
        ("gemma-3-270m", 268_098_176),
        ("phi-3-medium", 13_960_238_080),
        ("phi-4", 14_659_507_200),
        ("phi-4-mini", 3_836_021_760),
        ("gpt2", 124_439_808),
        ("bert-base", 109_483_778),
        ("distilbert", 66_955_010),
    ],
)
def test_published_counts(name: str, total: int) -> None:
    """The shapes in the table give the parameter counts that their publishers state."""
    from app.core.memory import model_named

    assert parameters_of(model_named(name)).total == total


def test_parts_add_up() -> None:
    """The total is the sum of its parts, and a tied head has no parameters of its own."""
    untied = parameters_of(architecture_of(CONFIGS["llama"]))
    tied = parameters_of(architecture_of(CONFIGS["llama-tied"]))
    assert untied.total - tied.total == untied.head == math.prod((192, 1009))
    assert tied.head == 0
    assert untied.layer == untied.layer_matrices + untied.layer_vectors
