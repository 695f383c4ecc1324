"""The smallest GPU that a stated training needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.memory import MODELS, Training, estimate, verdict
from app.core.memory.catalogue import known_name
from app.core.memory.need import Stated, changes_that_help, layouts_of, least_need, smallest_known

LORA = Stated("llama-3-8b", MODELS["llama-3-8b"], Training("lora", 1, 2048), batch=16, gpus=1)


def test_the_need_is_the_least_capacity_that_fits() -> None:
    """One byte less does not fit, and no other layout needs less."""
    need = least_need(LORA)
    found = estimate(LORA.model, need.training)
    assert verdict(found, need.capacity_bytes) == "fits"
    assert verdict(found, need.capacity_bytes - 1) != "fits"
    for layout in layouts_of(LORA):
        assert verdict(estimate(LORA.model, layout), need.capacity_bytes - 1) != "fits"


def test_what_is_stated_is_kept() -> None:
    """A micro-batch and a refusal to recompute cost memory, and are not argued with."""
    free = least_need(LORA)
    fixed = least_need(replace(LORA, micro_batch=4, checkpointing=False))
    assert (free.training.batch, free.training.checkpointing) == (1, True)
    assert (fixed.training.batch, fixed.training.accumulation, fixed.training.checkpointing) == (4, 4, False)
    assert fixed.capacity_bytes > free.capacity_bytes


def test_several_gpus_share_the_states() -> None:
    """Full training on four GPUs needs less on each than on one."""
    full = replace(LORA, training=Training("full", 1, 2048))
    alone, four = least_need(full), least_need(replace(full, gpus=4))
    assert four.training.sharding == "fsdp"
    assert four.capacity_bytes < alone.capacity_bytes / 2


def test_an_optimizer_inside_the_way_back_takes_the_batch_at_once() -> None:
    """It cannot accumulate: all of a replica's sequences are there together."""
    need = least_need(replace(LORA, training=Training("full", 1, 512, optimizer="in_backward_adamw")))
    assert (need.training.batch, need.training.accumulation) == (16, 1)


def test_changes_that_help_do_help() -> None:
    """Each named change makes the smaller GPU do."""
    full = replace(LORA, training=Training("full", 1, 2048))
    need = least_need(full)
    assert "method=lora" in changes_that_help(full, need, 42_900_000_000)
    assert least_need(LORA).capacity_bytes <= 42_900_000_000
    assert (smallest_known(40_000_000_000), smallest_known(10**12)) == ("L40S", None)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
        ("bert-base-uncased", "bert-base"),
        ("GPT2", "gpt2"),
        ("tiny-llama-bytes", None),
        ("meta-llama/Llama-3.1-8B", "llama-3-8b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3-70b"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "llama-3-8b"),
        ("unsloth/Qwen2.5-7B-Instruct-unsloth-bnb-4bit", "qwen2.5-7b"),
        ("Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b"),
        ("Qwen/Qwen3-14B-Base", "qwen3-14b"),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "qwen2.5-32b"),
        ("Qwen/Qwen2.5-7B-Instruct-1M", "qwen2.5-7b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "deepseek-r1-distill-qwen-1.5b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama-3-8b"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("mistralai/Mistral-Nemo-Base-2407", "mistral-nemo"),
        ("mistralai/Mistral-Small-24B-Instruct-2501", "mistral-small-24b"),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b"),
        ("HuggingFaceTB/SmolLM3-3B-Base", "smollm3-3b"),
        ("HuggingFaceH4/zephyr-7b-beta", "mistral-7b"),
        ("microsoft/Phi-3-mini-4k-instruct", "phi-3-mini"),
        ("microsoft/Phi-3.5-mini-instruct", "phi-3-mini"),
        ("microsoft/phi-4", "phi-4"),
        ("google/gemma-3-270m-it", "gemma-3-270m"),
        ("distilbert/distilbert-base-uncased", "distilbert"),
        ("google-bert/bert-base-multilingual-cased", "bert-base-multilingual"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", None),
        ("meta-llama/Llama-3.2-11B-Vision-Instruct", None),
        ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", None),
        ("microsoft/Phi-4-multimodal-instruct", None),
        ("Qwen/Qwen3-30B-A3B", None),
        ("my-mistral", None),
        ("instruct", None),
        ("", None),
    ],
)
def test_models_are_known_by_their_name_on_the_hub_too(name: str, known: str | None) -> None:
    """The publisher, the case, an edition and what was trained on top do not change the shape. A word that nobody knows
    may."""
    assert known_name(name) == known
