"""A mixture of experts is refused before anything is sent, or fetched; no dense model is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allpass.errors import InvalidInput
from allpass.recipe.mixtures import refuse_config
from allpass.recipe.run import check_model


@pytest.mark.parametrize(
    "name",
    [
        "mistralai/Mixtral-8x7B-Instruct-v0.1", "Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen1.5-MoE-A2.7B",
        "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-R1", "microsoft/Phi-3.5-MoE-instruct",
        "meta-llama/Llama-4-Scout-17B-16E", "allenai/OLMoE-1B-7B-0924",
    ],
)  # fmt: skip
def test_a_mixture_is_known_by_its_name(name: str) -> None:
    with pytest.raises(InvalidInput, match="is a mixture of experts, which the recipe does not train yet") as refused:
        check_model(name)
    assert refused.value.hint == "a dense model, or a script of your own: allpass run train.py"


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
        "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "answerdotai/ModernBERT-base", "Snowflake/snowflake-arctic-embed-m",
        "google/gemma-2-9b-it", "HuggingFaceTB/SmolLM2-135M", "bert-base-uncased", "gpt2", "ibm-granite/granite-3b-a",
    ],
)  # fmt: skip
def test_a_dense_model_is_not_refused(name: str) -> None:
    check_model(name)


def test_a_folder_is_what_its_configuration_says(tmp_path: Path) -> None:
    """Whatever it is called; also where the text model is one part of it. Without a configuration its name counts."""
    dense, mixture, sees = tmp_path / "my-moe", tmp_path / "llama", tmp_path / "sees"
    for folder, config in (
        (dense, {"model_type": "llama", "num_local_experts": 1, "num_experts": None}),
        (mixture, {"model_type": "mixtral", "num_local_experts": 8}),
        (sees, {"text_config": {"num_experts": 128}}),
    ):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
    check_model(str(dense))
    for folder in (mixture, sees):
        with pytest.raises(InvalidInput, match="mixture of experts"):
            check_model(str(folder))
    (dense / "config.json").unlink()
    with pytest.raises(InvalidInput, match="mixture of experts"):
        check_model(str(dense))


@pytest.mark.parametrize("value", [True, "8", 1, 0, -3, None, [8]])
def test_a_configuration_that_counts_no_experts_is_dense(value: Any) -> None:
    refuse_config("m", {"num_experts": value, "text_config": "none"})
